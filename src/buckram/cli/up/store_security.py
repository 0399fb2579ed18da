"""Security of the ZooKeeper or etcd of `buckram up --secure`: a certificate, a user and its password.

That user is an administrator of the cluster. ZooKeeper may have further logins, of Apache's clients. It reads its users
when it starts, so `up` starts it again when they change. Not here: bookies and clients (`cli/up/security_files.py`),
what those logins may do (`metadata/zookeeper/access_lists.py`).
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from buckram.cli.up.security_files import BOTH, SecureDirectory
from buckram.config import TlsConfig
from buckram.core.security.tokens import need_extra
from buckram.errors import CorruptStore
from buckram.launch.etcd_server import EtcdServer, start_etcd
from buckram.launch.etcd_server.users import USER, require_password
from buckram.launch.zookeeper_server import ZooKeeperServer, start_zookeeper
from buckram.metadata.default import VARIABLE as METADATA
from buckram.metadata.uri import ETCD_AUTH, ETCD_CA, ZOOKEEPER_AUTH, ZOOKEEPER_CA, ZOOKEEPER_SHARED
from buckram.runtime.disk.new_directory import removed_on_failure

SETTINGS = "store.env"
ZOOKEEPER_USER = "buckram"
LOGIN_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
_ZOOKEEPER_OPTIONS = (
    "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    "sessionRequireClientSASLAuth=true",
    "client.certReload=true",  # a certificate that was made anew counts at once
)
Cancelled = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class SecureStore:
    """Secured metadata store. `kind` is zookeeper or etcd. Its files are among those of `guard`, readable by their
    owner only."""

    guard: SecureDirectory
    kind: str

    def start(self, directory: Path, deadline_s: float, cancelled: Cancelled) -> ZooKeeperServer | EtcdServer:
        """Start the server with TLS only and passwords required. Raises the errors of `start_zookeeper` and
        `start_etcd`, and ConfigError without the extra `security`."""
        self.prepare()
        with removed_on_failure(directory, whole=True):
            return self._start(directory, deadline_s, cancelled)

    def _start(self, directory: Path, deadline_s: float, cancelled: Cancelled) -> ZooKeeperServer | EtcdServer:
        # Its files have the keys that tokens are signed with.
        directory.mkdir(exist_ok=True)
        directory.chmod(0o700)
        if self.kind == "etcd":
            pair = TlsConfig("required", str(self.guard.ca), str(self._file("pem")), str(self._file("key")))
            server = start_etcd(directory, tls=pair, deadline_s=deadline_s, cancelled=cancelled)
            try:
                require_password(server, self.password)
            except BaseException:
                server.stop()
                raise
            return server
        both = str(self._file(BOTH))
        return start_zookeeper(
            directory,
            options=_ZOOKEEPER_OPTIONS,
            # What Apache's clients make there belongs to the cluster as well, whatever they say of it.
            java_options=(
                f"-Djava.security.auth.login.config={self._file('jaas')}",
                f"-Dzookeeper.superUser={ZOOKEEPER_USER}",
            ),
            tls=TlsConfig("required", str(self.guard.ca), both, both),
            deadline_s=deadline_s,
            cancelled=cancelled,
        )

    def uri(self, server: ZooKeeperServer | EtcdServer) -> str:
        """Return the metadata URI of the cluster on this server."""
        return f"etcds://{server.address}/buckram" if self.kind == "etcd" else f"zk://{server.address}/ledgers"

    def settings(self) -> dict[str, str]:
        """Return the environment variables for processes that open the store: bookies, and administrators."""
        if self.kind == "etcd":
            return {ETCD_CA: str(self.guard.ca), ETCD_AUTH: f"{USER}:{self.password}"}
        login = f"sasl:{ZOOKEEPER_USER}:{self.password}"
        return {ZOOKEEPER_CA: str(self.guard.ca), ZOOKEEPER_AUTH: login, ZOOKEEPER_SHARED: "ledgers"}

    def write_settings(self, uri: str) -> Path:
        """Write them, with the URI, into a file for a shell of the same user, and return it."""
        from buckram.runtime.net.security.certificate_authority import write_private

        path = self.guard.path / SETTINGS
        known = {METADATA: uri, **self.settings(), **self.guard.admin_settings()}
        write_private(path, "".join(f"export {name}={shlex.quote(value)}\n" for name, value in known.items()).encode())
        return path

    @property
    def password(self) -> str:
        return self._file("password").read_text().strip()

    def _file(self, ending: str) -> Path:
        return self.guard.path / f"{self.kind}.{ending}"

    def prepare(self) -> None:
        """Make the files that are missing. ConfigError without the extra `security`."""
        need_extra("--secure")
        from buckram.runtime.net.security.certificate_authority import write_private

        self.guard.certificates.keep(self.kind)
        if not self._file("password").exists():
            write_private(self._file("password"), secrets.token_urlsafe(32).encode() + b"\n")
        if self.kind == "zookeeper":
            if not self._file(BOTH).exists():
                write_private(self._file(BOTH), self._file("key").read_bytes() + self._file("pem").read_bytes())
            self._write_users(self.logins())

    # Further logins of ZooKeeper

    def logins(self) -> dict[str, str]:
        """Users and passwords beside the cluster's own."""
        try:
            found: dict[str, str] = json.loads(self._file("logins").read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise CorruptStore(f"{self._file('logins')}: not JSON: {error}; put a good copy back") from None
        return found

    def change_login(self, user: str, password: str | None) -> None:
        """Give a user a password, or take the login away. It takes effect when ZooKeeper has been restarted."""
        from buckram.runtime.net.security.certificate_authority import write_private

        with (self.guard.path / "zookeeper.lock").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            logins = {name: secret for name, secret in self.logins().items() if name != user}
            if password is not None:
                logins[user] = password
            write_private(self._file("logins"), json.dumps(logins).encode() + b"\n")
            self._write_users(logins)

    def _write_users(self, logins: dict[str, str]) -> None:
        from buckram.runtime.net.security.certificate_authority import write_private

        known = {ZOOKEEPER_USER: self.password, **logins}
        users = " ".join(f'user_{user}="{secret}"' for user, secret in known.items())
        said, path = f"Server {{ {LOGIN_MODULE} required {users}; }};{os.linesep}".encode(), self._file("jaas")
        if not path.exists() or path.read_bytes() != said:
            write_private(path, said)

    def users_version(self) -> int:
        """Another number whenever the users of ZooKeeper have changed; 0 for etcd."""
        return self._file("jaas").stat().st_mtime_ns if self.kind == "zookeeper" else 0
