"""What the ZooKeeper or etcd of a cluster has of `buckram up --secure`: a certificate, a user, and how to enter it.

Whoever enters it is an administrator of the cluster. Not here: bookies and clients (`cli/secure_directory.py`).
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from buckram.cli.secure_directory import SecureDirectory
from buckram.config import TlsConfig
from buckram.core.security.tokens import need_extra
from buckram.etcd_server import EtcdServer, start_etcd
from buckram.etcd_server.users import USER, require_password
from buckram.metadata.uri import ETCD_AUTH, ETCD_CA, ZOOKEEPER_AUTH, ZOOKEEPER_CA
from buckram.zookeeper_server import ZooKeeperServer, start_zookeeper

SETTINGS = "store.env"
_ZOOKEEPER_USER = "buckram"
_LOGIN_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
_ZOOKEEPER_OPTIONS = (
    "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    "sessionRequireClientSASLAuth=true",
)
Cancelled = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class SecureStore:
    """`kind` is zookeeper or etcd. Its files are among those of `guard`, and for their owner only."""

    guard: SecureDirectory
    kind: str

    def start(self, directory: Path, deadline_s: float, cancelled: Cancelled) -> ZooKeeperServer | EtcdServer:
        """Start the server so that it takes TLS only, and nobody without a password. The errors of `start_zookeeper`
        and `start_etcd`, and ConfigError without the extra `security`."""
        need_extra("--secure")
        self._make_missing()
        # Its files have the keys that tokens are signed with.
        directory.mkdir(exist_ok=True)
        directory.chmod(0o700)
        if self.kind == "etcd":
            pair = TlsConfig("required", str(self.guard.ca), str(self._file("pem")), str(self._file("key")))
            server = start_etcd(directory, tls=pair, deadline_s=deadline_s, cancelled=cancelled)
            try:
                require_password(server, self._password)
            except BaseException:
                server.stop()
                raise
            return server
        both = str(self._file("both.pem"))
        return start_zookeeper(
            directory,
            options=_ZOOKEEPER_OPTIONS,
            java_options=(f"-Djava.security.auth.login.config={self._file('jaas')}",),
            tls=TlsConfig("required", str(self.guard.ca), both, both),
            deadline_s=deadline_s,
            cancelled=cancelled,
        )

    def uri(self, server: ZooKeeperServer | EtcdServer) -> str:
        """Return the metadata URI of the cluster on this server."""
        return f"etcds://{server.address}/buckram" if self.kind == "etcd" else f"zk://{server.address}/ledgers"

    def settings(self) -> dict[str, str]:
        """The environment of whoever opens the store: bookies, and administrators."""
        if self.kind == "etcd":
            return {ETCD_CA: str(self.guard.ca), ETCD_AUTH: f"{USER}:{self._password}"}
        return {ZOOKEEPER_CA: str(self.guard.ca), ZOOKEEPER_AUTH: f"sasl:{_ZOOKEEPER_USER}:{self._password}"}

    def write_settings(self, uri: str) -> Path:
        """Write them, with the URI, into a file for a shell of the same user, and return it."""
        from buckram.net.authority import write_private

        path = self.guard.path / SETTINGS
        known = {"BUCKRAM_METADATA": uri, **self.settings(), **self.guard.admin_settings()}
        write_private(path, "".join(f"export {name}={shlex.quote(value)}\n" for name, value in known.items()).encode())
        return path

    @property
    def _password(self) -> str:
        return self._file("password").read_text().strip()

    def _file(self, ending: str) -> Path:
        return self.guard.path / f"{self.kind}.{ending}"

    def _make_missing(self) -> None:
        from buckram.net.authority import Authority, write_private

        authority = Authority(self.guard.path)
        if not self._file("password").exists():
            write_private(self._file("password"), secrets.token_urlsafe(32).encode() + b"\n")
        if not self._file("pem").exists():
            authority.bookie(self.kind, list(dict.fromkeys(["127.0.0.1", "::1", "localhost", socket.gethostname()])))
        if self.kind == "zookeeper":
            both = self._file("key").read_bytes() + self._file("pem").read_bytes()
            write_private(self._file("both.pem"), both)
            user = f'user_{_ZOOKEEPER_USER}="{self._password}"'
            write_private(self._file("jaas"), f"Server {{ {_LOGIN_MODULE} required {user}; }};{os.linesep}".encode())


__all__ = ["SETTINGS", "SecureStore"]
