"""Security of `buckram up --secure`: files in DIR/security, and the logins of its ZooKeeper or etcd.

The files are an authority, certificates of servers, and tokens. They are made if they are missing, and certificates are
renewed before they end; their users read a changed file again, so nothing has to be restarted. The metadata server has
a certificate, a user and its password. That user is an administrator of the cluster. ZooKeeper may have further logins,
of Apache's clients. It reads its users when it starts, so `up` starts it again when they change. Needs the extra
`security`. Not here: when a certificate is due (`core/security/certificates.py`), the cluster's directory itself
(`cli/up/cluster_directory.py`), certificates of Apache's clients (`cli/security/apache_client.py`), what logins may do
(`metadata/zookeeper/access_lists.py`).
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from buckram.config import TlsConfig
from buckram.core.security.certificates import Life, life_of
from buckram.core.security.tokens import ADMIN, need_extra
from buckram.errors import ConfigError, CorruptStore, InvalidArgument, MalformedRecord
from buckram.launch.etcd_server import EtcdServer, start_etcd
from buckram.launch.etcd_server.server import USER, require_password
from buckram.launch.zookeeper_server import ZooKeeperServer, start_zookeeper
from buckram.metadata.default import VARIABLE as METADATA
from buckram.metadata.records.security import SecurityStore
from buckram.metadata.uri import ETCD_AUTH, ETCD_CA, ZOOKEEPER_AUTH, ZOOKEEPER_CA, ZOOKEEPER_SHARED
from buckram.runtime.disk.new_directory import removed_on_failure
from buckram.seams import MetadataStore

# -- certificates -----------------------------------------------------------------------------------------

AUTHORITY = "ca"
SERVERS = ("bookie", "gateway", "zookeeper", "etcd")
"""Servers that may have a certificate. All bookies of `up` share one."""
BOTH = "both.pem"
"""ZooKeeper takes its certificate and the key from one file."""
LOOK_S = 3600.0
"""Seconds between two checks of a running `up` whether a certificate is due for renewal."""
_LOCK = "certificates.lock"


@dataclass(frozen=True, slots=True)
class Shown:
    """Current state of one certificate."""

    name: str
    file: Path
    life: Life

    def state(self, now_s: float) -> str:
        if self.life.ends_s <= now_s:
            return "ended"
        return "due" if self.life.due(now_s) else "good"


@dataclass(frozen=True, slots=True)
class Certificates:
    """Certificates in `folder`, which is DIR/security. `clock` is replaced by tests."""

    folder: Path
    clock: Callable[[], float] = time.time

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def shown(self) -> Sequence[Shown]:
        """Return all that are there, the authority's first. Raises ConfigError for one that cannot be read."""
        found = [name for name in (AUTHORITY, *SERVERS) if self.file(name).exists()]
        return [Shown(name, self.file(name), self._life(name)) for name in found]

    def keep(self, *servers: str) -> Sequence[str]:
        """Make the authority and the certificates of these servers where they are missing, and all that are there anew
        where they are due. Returns the names of those that were made anew."""
        with self._changing():
            before = {one.name: one for one in self.shown()}
            orphaned = AUTHORITY not in before  # signed by nobody that is known
            due = [name for name, one in before.items() if orphaned or one.state(self.clock()) != "good"]
            missing = [name for name in servers if name not in before or not self._key(name).exists()]
            if due or missing or orphaned:
                self._make(list(dict.fromkeys([*due, *missing])))
        return due

    def renew(self, names: Sequence[str]) -> None:
        """Make these anew, however long they would live. Raises InvalidArgument for one that is not there."""
        known = [one.name for one in self.shown()]
        for name in names:
            if name not in known:
                raise InvalidArgument(
                    f"{self.file(name)}: no certificate of `buckram up --secure`; known are {', '.join(known)}"
                )
        with self._changing():
            self._make(sorted(names, key=known.index))

    def named(self, file: Path) -> str:
        """Return the name of the certificate in this file of the folder. Raises InvalidArgument."""
        for one in self.shown():
            if file.exists() and one.file.samefile(file):
                return one.name
        raise InvalidArgument(f"{file}: is none of the certificates in {self.folder}; `buckram certificate list` shows")

    def _life(self, name: str) -> Life:
        try:
            return life_of(self.file(name).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.file(name)}: no certificate that can be read: {error}; remove it, and a new one is made"
            ) from None

    def _key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock under which one process at a time makes certificates: a key and its certificate belong
        together."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)

    def _make(self, names: Sequence[str]) -> None:
        """Make these certificates. Only this needs the authority's key, which may be kept elsewhere otherwise."""
        from buckram.runtime.net.security.certificate_authority import Authority, write_private

        authority, hosts = Authority(self.folder), ["127.0.0.1", "::1", "localhost", socket.gethostname()]
        for name in names:
            if name == AUTHORITY:
                authority.renew()
                continue
            pair = authority.bookie(name, list(dict.fromkeys(hosts)))
            if name == "zookeeper":
                write_private(self.folder / f"{name}.{BOTH}", pair.key.read_bytes() + pair.certificate.read_bytes())


class Renewing:
    """Periodic renewal while `up` runs; reports renewed certificates, or why renewal failed."""

    def __init__(
        self,
        certificates: Certificates,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._certificates, self._say, self._clock = certificates, say, clock
        self._next, self._said = clock() + LOOK_S, ""

    def look(self) -> None:
        """Look, if it is time for it."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + LOOK_S
        try:
            for name in self._certificates.keep():
                self._say(f"the certificate {self._certificates.file(name)} was renewed before it expires")
            self._said = ""
        except (ConfigError, OSError) as error:
            if str(error) != self._said:
                self._said = str(error)
                self._say(f"certificates could not be renewed: {error}")


# -- the directory, with its tokens -----------------------------------------------------------------------

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
