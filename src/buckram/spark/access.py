"""How this process and the executors enter a cluster: a token and TLS, which travel with the metadata URI unseen.

Spark puts the options of a data source into plans, the UI and event logs; so `ClusterUri` takes the secrets out of the
way as soon as the options are parsed, and is a plain URI wherever it is shown, logged or written to a checkpoint.
Not here: the options themselves (`spark/options.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from buckram.config import EncryptionConfig, TlsConfig, load
from buckram.runtime.net.logins import TOKEN_VARIABLE, read_secret
from buckram.runtime.net.secure import tls_of_environment

SECRET_OPTIONS = ("token", "tokenFile", "tls.ca", "tls.certificate", "tls.key")


class ClusterUri(str):
    """A metadata URI with the way in. Text of it, also its repr and JSON, is the URI alone; pickling keeps all."""

    token: str
    tls: TlsConfig
    encryption: EncryptionConfig
    """Where keys are, on every machine."""

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
        """Whether bookies are spoken to through TLS, or want to know who asks."""
        return self.tls.mode != "off" or bool(self.token)


def cluster_uri(uri: str, given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> ClusterUri:
    """The URI with what the options give, and otherwise what the environment of this process, the driver, says; so that
    executors need no environment of their own. Files of certificates are read where they are used. ConfigError."""
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
    """Arguments of `connect` and `secured_by` for a URI: token and TLS."""
    if not isinstance(uri, ClusterUri):
        return {}
    return {"token": uri.token, "tls": uri.tls if uri.tls.mode != "off" else None}


def encryption_of(uri: str) -> EncryptionConfig | None:
    """Where the keys of namespaces are; None: as the environment of this process says."""
    return uri.encryption if isinstance(uri, ClusterUri) else None
