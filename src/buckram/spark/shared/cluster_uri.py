"""Access of this process and the executors to a cluster: a token and TLS, which travel hidden in the metadata URI.

Spark puts the options of a data source into plans, the UI and event logs; so `ClusterUri` hides the secrets as soon as
the options are parsed, and is a plain URI wherever it is shown, logged or written to a checkpoint.
Not here: the options themselves (`spark/shared/options.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from buckram.config import AuthConfig, EncryptionConfig, TlsConfig, load
from buckram.runtime.net.security.logins import TOKEN_VARIABLE, read_secret
from buckram.runtime.net.security.secure_network import tls_of_environment

SECRET_OPTIONS = ("token", "tokenFile", "tls.ca", "tls.certificate", "tls.key")


class ClusterUri(str):
    """A metadata URI with token and TLS. As text, repr and JSON it is the URI alone; pickling keeps everything."""

    token: str
    tls: TlsConfig
    encryption: EncryptionConfig
    """Location of the encryption keys, the same on every machine."""

    def __new__(
        cls, uri: str, token: str = "", tls: TlsConfig | None = None, encryption: EncryptionConfig | None = None
    ) -> ClusterUri:
        made = super().__new__(cls, uri)
        made.token, made.tls, made.encryption = token, tls or TlsConfig(), encryption or EncryptionConfig()
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return ClusterUri, (str(self), self.token, self.tls, self.encryption)

    @property
    def secured(self) -> bool:
        """Return whether connections to bookies use TLS or a token."""
        return self.tls.mode != "off" or bool(self.token)


def cluster_uri(uri: str, given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> ClusterUri:
    """Return the URI with token and TLS from the options, else from the environment of this process, the driver.

    Executors then need no environment of their own. Certificate files are read where they are used. ConfigError.
    """
    token = str(given.get("token") or "") or environment.get(TOKEN_VARIABLE, "").strip()
    if given.get("tokenFile"):
        token = read_secret(str(given["tokenFile"]))
    tls = tls_of_environment(environment)
    ca, certificate, key = (str(given.get(f"tls.{name}") or "") for name in ("ca", "certificate", "key"))
    if ca or certificate or key or uri.lower().startswith("buckram+tls:"):
        certificate, key = certificate or tls.certificate, key or tls.key
        tls = replace(tls, mode="required", ca=ca or tls.ca, certificate=certificate, key=key)
    return ClusterUri(uri, token, tls, load("encryption", environment=environment)[0])


def way_in(uri: str) -> dict[str, Any]:
    """Return the arguments of `connect` and `secured_by` for a URI: token and TLS."""
    if not isinstance(uri, ClusterUri):
        return {}
    return {"token": uri.token, "tls": uri.tls if uri.tls.mode != "off" else None}


def encryption_of(uri: str) -> EncryptionConfig | None:
    """Return the location of the keys of namespaces; None if the environment of this process decides."""
    return uri.encryption if isinstance(uri, ClusterUri) else None


def vouched(uri: str, cursor: str, streams: Iterable[str]) -> str:
    """Return the proof, for an offset, that a process with a credential of this one's, or of the URI's, made it.

    A checkpoint may lie where others write, and the listener of a query logs in to the cluster that an offset names:
    without a proof it would send its credential wherever they point. Empty for a process without any.
    """
    own = {uri.token} if isinstance(uri, ClusterUri) and uri.token else set()
    return " ".join(sorted(_proof(secret, str(uri), cursor, streams) for secret in own | _secrets(os.environ)))


def is_vouched(
    proof: object, uri: str, cursor: str, streams: Collection[str], environment: Mapping[str, str] = os.environ
) -> bool:
    """Return whether an offset that says this may be followed with the credential of this process: it has none, or its
    environment names the cluster, or whoever made the offset had the same one."""
    secrets = _secrets(environment)
    if not secrets or uri == environment.get("BUCKRAM_METADATA"):
        return True
    given = proof.split() if isinstance(proof, str) and proof.isascii() else []
    wanted = [_proof(secret, uri, cursor, streams) for secret in secrets]
    return any(hmac.compare_digest(one, other) for one in given for other in wanted)


def _proof(secret: str, uri: str, cursor: str, streams: Iterable[str]) -> str:
    said = json.dumps([uri, cursor, sorted(streams)]).encode()
    return hmac.new(secret.encode(), said, hashlib.sha256).hexdigest()


def _secrets(environment: Mapping[str, str]) -> set[str]:
    """Return what a process logs in with, if its environment or configuration has it. Raises ConfigError."""
    auth: AuthConfig = load("auth", environment=environment)[0]
    files = [name for name in (auth.token_file, auth.sasl_password_file if auth.sasl_user else "") if name]
    return {environment.get(TOKEN_VARIABLE, "").strip(), *map(read_secret, files)} - {""}
