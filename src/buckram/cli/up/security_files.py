"""Security files that `buckram up --secure` makes below its directory: an authority, certificates and tokens.

Needs the extra `security`. Not here: the cluster's directory itself (`cli/up/cluster_directory.py`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from buckram.cli.up.certificates import Certificates
from buckram.config import TlsConfig
from buckram.core.security.tokens import ADMIN, need_extra
from buckram.errors import MalformedRecord
from buckram.metadata.records.security import SecurityStore
from buckram.seams import MetadataStore

FOLDER = "security"
CLIENT = "client"
_DAY_S = 86_400.0
_LASTS_S = 365 * _DAY_S
_RENEW_S = 30 * _DAY_S
"""A token that has less than this left is made anew at the next start."""


@dataclass(frozen=True, slots=True)
class SecureDirectory:
    """`DIR/security`, for its owner only."""

    path: Path

    @property
    def ca(self) -> Path:
        return self.path / "ca.pem"

    @property
    def admin_token(self) -> str:
        return (self.path / "admin.token").read_text().strip()

    @property
    def client_token(self) -> str:
        return (self.path / "client.token").read_text().strip()

    @property
    def certificates(self) -> Certificates:
        return Certificates(self.path)

    async def prepare(self, store: MetadataStore) -> None:
        """Make what is missing, and renew certificates and tokens that end soon. Raises ConfigError without the extra
        `security`."""
        need_extra("--secure")
        from buckram.runtime.net.security.certificate_authority import write_private

        self.certificates.keep("bookie", "gateway")
        security = SecurityStore(store)
        for name, role in ((ADMIN, (ADMIN,)), (CLIENT, ())):
            file = self.path / f"{name}.token"
            if not await self._lasts(security, store, file):
                now = time.time()
                _, text = await security.create_token(name, role, now, now + _LASTS_S)
                write_private(file, text.encode() + b"\n")
        if not (await security.acl()).grants:
            everything = ("read", "append", "create", "delete")
            await security.change_acl(lambda acl: acl.granting(f"token:{CLIENT}", "default", everything))

    async def _lasts(self, security: SecurityStore, store: MetadataStore, file: Path) -> bool:
        """Return whether the file holds a token of this cluster that stays valid for at least _RENEW_S seconds."""
        from buckram.core.security.tokens import TokenRefused, verify

        try:
            text = file.read_text().strip()  # noqa: ASYNC240  # one line, once
            state = await security.state()
            verify(text, state.keys, await store.instance_id(), time.time() + _RENEW_S, state.revoked)
        except (OSError, TokenRefused, UnicodeDecodeError, MalformedRecord):
            return False
        return True

    def bookie_settings(self) -> dict[str, str]:
        """Return the environment variables of the bookies."""
        return {
            "BUCKRAM_TLS_MODE": "required",
            "BUCKRAM_TLS_CA": str(self.ca),
            "BUCKRAM_TLS_CERTIFICATE": str(self.path / "bookie.pem"),
            "BUCKRAM_TLS_KEY": str(self.path / "bookie.key"),
            "BUCKRAM_TLS_CLIENT_CERTIFICATES": "optional",
            "BUCKRAM_AUTH_LOGINS": "token certificate",
            "BUCKRAM_AUTH_AUTHORISATION": "on",
            "BUCKRAM_AUTH_AUDIT": "on",
            "BUCKRAM_AUTH_UNIX_ADMIN": "0",  # there is a token for whoever may read this directory
        }

    def gateway_tls(self) -> TlsConfig:
        """Return the gateway's certificate and key, and the authority that it trusts when it forwards requests."""
        return TlsConfig("required", str(self.ca), str(self.path / "gateway.pem"), str(self.path / "gateway.key"))

    def admin_settings(self) -> dict[str, str]:
        """Return the environment variables of the services that maintain the cluster."""
        return {"BUCKRAM_CA": str(self.ca), "BUCKRAM_TOKEN": self.admin_token}
