"""ZooKeeper servers as child processes: one with its readiness probe, and a few that form a quorum.

The probe begins a session as a client does, and finds it in the log of the server's directory. That proves that a
quorum answered, and that this server did and no other one on the same port. Four-letter words, which any peer may send,
can stay off. An ensemble on this machine is for tests and trials of what a real ensemble does. Not here: what all
servers that are started here share (`launch/child_process.py`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from buckram.addresses import loopback
from buckram.config import TlsConfig
from buckram.errors import CorruptStore, InvalidArgument, ZooKeeperFailed
from buckram.launch.child_process import (
    LOCK,
    POLL_SECONDS,
    READY_SECONDS,
    ServerProcess,
    client_context,
    free_port,
    port_in_use,
    read_description,
    started,
    write_description,
)
from buckram.launch.zookeeper_server.settings import Member, Settings, ZooKeeperDirectory, java_command, zoo_cfg
from buckram.runtime.disk.new_directory import removed_on_failure

_REQUEST = struct.pack(">iqiqi16s?", 0, 0, 1, 0, 16, bytes(16), False)
"""Version, last zxid, a timeout that the server raises to its least, no session yet, its password, read-only."""


_RESPONSE = struct.Struct(">iiq")


_CLOSE = struct.pack(">iii", 8, 1, -11)


_LONGEST = 1024


_LOGS = 2


def begin_session(connection: socket.socket) -> bytes:
    """Begin a session and end it; return its id, eight bytes. Empty if the server does not serve. Raises OSError."""
    connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
    (length,) = struct.unpack(">i", _exactly(connection, 4))
    if not _RESPONSE.size <= length <= _LONGEST:
        return b""
    _, timeout_ms, session = _RESPONSE.unpack_from(_exactly(connection, length))
    with contextlib.suppress(OSError):  # where a login is asked for, the session ends by its timeout
        connection.sendall(_CLOSE)
        connection.recv(_LONGEST)
    return struct.pack(">q", session) if timeout_ms > 0 and session else b""


def is_logged(session: bytes, data: Path) -> bool:
    """Return whether a session is in the newest transactions of a server's data."""
    with contextlib.suppress(OSError):
        logs = sorted((data / "version-2").glob("log.*"), key=lambda path: path.stat().st_mtime_ns)
        return any(_holds(path, session) for path in logs[-_LOGS:])
    return False


def _holds(path: Path, found: bytes) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, 2):
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(found) >= 0


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise ConnectionError("the server closed the connection")
        found += piece
    return found


ANSWER_SECONDS = 2.0


FIRST_ANSWER_SECONDS = 0.25
"""A server that is just starting takes requests that it never answers; so the first wait is short, and doubled."""


ATTEMPTS = 5


FOREIGN_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH")


def start_zookeeper(
    data_dir: Path | str,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    sync: bool = True,
    heap_mb: int = 256,
    tick_ms: int = 1000,
    options: tuple[str, ...] = (),
    java_options: tuple[str, ...] = (),
    tls: TlsConfig | None = None,
    deadline_s: float = READY_SECONDS,
    cancelled: Callable[[], bool] = lambda: False,
) -> ZooKeeperServer:
    """Start a server on `data_dir` and wait until it serves. The directory is made if it is missing, and removed again
    if the start fails; the same directory is the same server again.

    `port` 0 is the port that the directory had before, else a free one. Sessions time out between 2 and 100 ticks.
    `options` are further lines of zoo.cfg, `java_options` further flags of the JVM. `tls`: clients are served through
    TLS only; its certificate is a PEM file that has the key as well.
    Blocks; `cancelled` is asked now and then and ends the wait. ConfigError without Java or PySpark, ForeignDirectory,
    PortInUse, ZooKeeperFailed.
    """
    settings = Settings(
        host=host, sync=sync, heap_mb=heap_mb, tick_ms=tick_ms, options=options, java_options=java_options, tls=tls
    )
    with removed_on_failure(data_dir, lock=LOCK, whole=True):
        server = ZooKeeperServer(Path(data_dir), settings, port=port)
        return started(server, deadline_s, cancelled)


class ZooKeeperServer(ServerProcess):
    """One ZooKeeper."""

    KIND, FAILED = "ZooKeeper", ZooKeeperFailed

    def __init__(self, directory: Path, settings: Settings, *, port: int = 0) -> None:
        """Locks the directory; nothing runs yet. The errors of `start_zookeeper`."""
        if not 0 <= port <= 65535:
            raise InvalidArgument(f"port {port}: needs 0 to 65535; 0 picks a free one")
        self.settings = settings
        self._context = client_context(settings.tls)
        self._command = java_command(
            settings, directory.absolute(), directory.absolute() / "zoo.cfg", directory.absolute() / "zookeeper.log"
        )
        self.directory = place = ZooKeeperDirectory(directory, settings.number)
        chosen = port == 0 and not settings.members
        super().__init__(place, settings.host, port or place.known_port, chosen=chosen)

    @property
    def log(self) -> Path:
        return self.directory.log

    def last_words(self) -> str:
        return self.directory.last_words()

    def _spawn(self) -> None:
        place = self.directory
        place.config.write_text(zoo_cfg(self.settings, place.data, self.port), encoding="ascii")
        environment = {key: value for key, value in os.environ.items() if key not in FOREIGN_VARIABLES}
        environment["LC_ALL"] = "C.UTF-8"  # else Java does not find a directory whose name is not ASCII
        place.begin_log()
        with place.out.open("wb") as out:
            self._run(self._command, out, environment)

    def wait_ready(self, deadline_s: float = READY_SECONDS, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Returns once it answers requests (in an ensemble: once there is a quorum)."""
        limit = time.monotonic() + deadline_s
        attempts = ATTEMPTS
        within_s = FIRST_ANSWER_SECONDS
        while not (answer := self._serves(within_s)):
            within_s = min(2 * within_s, ANSWER_SECONDS) if answer is None else within_s
            if not self.alive:
                words = self.last_words()
                attempts -= 1
                if "Address already in use" not in words:
                    code = self._process.returncode if self._process is not None else None
                    raise ZooKeeperFailed(f"{self.directory.path}: ZooKeeper ended with code {code}: {words}")
                if not self._chosen or not attempts:
                    raise port_in_use(self.settings.host, self.port)
                self.reap()
                self.port = free_port(self.settings.host)
                self._spawn()
            if cancelled():
                raise ZooKeeperFailed(f"{self.directory.path}: ZooKeeper was stopped before it was ready")
            if time.monotonic() > limit:
                raise ZooKeeperFailed(
                    f"{self.directory.path}: ZooKeeper is not ready after {deadline_s:g} s; see {self.log}: "
                    f"{self.last_words()}"
                )
            time.sleep(POLL_SECONDS)
        if self.port != self.directory.known_port:
            self.directory.remember(self.port)

    def _serves(self, within_s: float) -> bool | None:
        """Return whether the server serves; None if it did not answer within `within_s` seconds."""
        try:
            with self._connected(within_s) as connection:
                session = begin_session(connection)
        except TimeoutError:
            return None
        except OSError:
            return False
        return bool(session) and is_logged(session, self.directory.data)

    @contextlib.contextmanager
    def _connected(self, within_s: float = ANSWER_SECONDS) -> Iterator[socket.socket]:
        """OSError."""
        host = loopback(self.settings.host)
        with contextlib.ExitStack() as opened:
            connection = opened.enter_context(socket.create_connection((host, self.port), within_s))
            if self._context is not None:
                connection = opened.enter_context(self._context.wrap_socket(connection, server_hostname=host))
            yield connection

    def ask(self, word: str) -> bytes:
        """Return the answer to one of ZooKeeper's four-letter words; empty if the server does not answer. All words but
        `srvr`, which ZooKeeper always allows, are off."""
        try:
            with self._connected() as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65536), b""))
        except OSError:
            return b""

    @property
    def mode(self) -> str:
        """`standalone`, `leader`, `follower`; empty while it does not serve."""
        for line in self.ask("srvr").splitlines():
            if line.startswith(b"Mode: "):
                return line[6:].decode()
        return ""


DESCRIPTION = "ensemble.json"
MAX_SERVERS = 9


def start_ensemble(
    directory: Path | str,
    servers: int = 3,
    *,
    sync: bool = True,
    heap_mb: int = 128,
    tick_ms: int = 500,
    deadline_s: float = READY_SECONDS,
) -> Ensemble:
    """Start `servers` servers under `directory` and wait for a quorum of all. The same directory is the same ensemble
    again, on the same ports. Blocks. The errors of `start_zookeeper`."""
    if not 1 < servers <= MAX_SERVERS:
        raise InvalidArgument(f"servers = {servers}: an ensemble here has 2 to {MAX_SERVERS}")
    root = Path(directory).absolute()
    with removed_on_failure(root, whole=True), ExitStack() as cleanup:
        root.mkdir(parents=True, exist_ok=True)
        members = _members(root, servers)
        started = []
        for member in members:
            settings = Settings(sync=sync, heap_mb=heap_mb, tick_ms=tick_ms, members=members, number=member.number)
            server = ZooKeeperServer(root / f"server-{member.number}", settings, port=member.port)
            cleanup.callback(server.stop)
            server.start()
            started.append(server)
        ensemble = Ensemble(started)
        ensemble.wait_ready(deadline_s)
        cleanup.pop_all()
    return ensemble


def _members(root: Path, count: int) -> tuple[Member, ...]:
    path = root / DESCRIPTION
    found = read_description(path).get("ports", [])
    if found:
        if not isinstance(found, list) or len(found) != count:
            raise CorruptStore(f"{path}: describes another number of servers than {count}; name another directory")
        return tuple(Member(n, *ports) for n, ports in enumerate(found, 1))
    taken: frozenset[int] = frozenset()
    while len(taken) < 3 * count:
        taken |= {free_port("127.0.0.1", taken)}
    ports = sorted(taken)
    rows = [ports[3 * n : 3 * n + 3] for n in range(count)]
    write_description(path, {"ports": rows})
    return tuple(Member(n, row[0], row[1], row[2]) for n, row in enumerate(rows, 1))


class Ensemble:
    """Running servers, numbered from 0 in `servers`; each is killed, paused and restarted on its own."""

    def __init__(self, servers: Sequence[ZooKeeperServer]) -> None:
        self.servers = list(servers)

    @property
    def address(self) -> str:
        """`host:port,host:port,...`, as clients take it."""
        return ",".join(server.address for server in self.servers)

    def wait_ready(self, deadline_s: float = READY_SECONDS) -> None:
        """Returns once every server that runs serves."""
        limit = time.monotonic() + deadline_s
        for server in self.servers:
            if server.alive or server.exit_code is None:
                server.wait_ready(max(0.1, limit - time.monotonic()))

    def leader(self, deadline_s: float = READY_SECONDS) -> int:
        """Return the index of the leader; waits while there is none."""
        limit = time.monotonic() + deadline_s
        while time.monotonic() < limit:
            for n, server in enumerate(self.servers):
                if server.alive and server.mode == "leader":
                    return n
            time.sleep(POLL_SECONDS)
        raise ZooKeeperFailed(f"{self.address}: no leader after {deadline_s:g} s; see {self.servers[0].log}")

    def kill(self, index: int) -> None:
        """kill -9 one server."""
        self.servers[index].kill()

    def restart(self, index: int, deadline_s: float | None = READY_SECONDS) -> None:
        """Start a server again; waits until it serves, unless `deadline_s` is None (there may be no quorum yet)."""
        server = self.servers[index]
        server.kill()
        server.start()
        if deadline_s is not None:
            server.wait_ready(deadline_s)

    def stop(self) -> None:
        """Stop every server. Idempotent."""
        for server in self.servers:
            server.ask_to_stop()
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Ensemble:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
