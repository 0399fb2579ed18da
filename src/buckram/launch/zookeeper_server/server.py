"""One ZooKeeper server as a child process: start, wait until it is ready, stop, kill, pause, start again.

The process ends when this one is gone, however that died: a shell beside it waits for the end of its standard input.
The readiness probe begins a session as a client does, and finds it in the log of the server's directory. That proves
that a quorum answered, and that this server did and no other one on the same port. Four-letter words, which any peer
may send, can stay off.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import signal
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from buckram.addresses import join, loopback
from buckram.config import TlsConfig
from buckram.errors import ConfigError, InvalidArgument, PortInUse, ZooKeeperFailed
from buckram.launch.zookeeper_server.directory import LOCK, POLL_SECONDS, ServerDirectory
from buckram.launch.zookeeper_server.settings import Settings, java_command, zoo_cfg
from buckram.runtime.disk.new_directory import removed_on_failure

READY_SECONDS = 30.0

STOP_SECONDS = 10.0

ANSWER_SECONDS = 2.0

FIRST_ANSWER_SECONDS = 0.25
"""A server that is just starting takes requests that it never answers; so the first wait is short, and doubled."""

ATTEMPTS = 5

PORTS = range(16_000, 32_000)
"""Where free ports are taken from: below the range that the kernel gives to outgoing connections, because a client that
retries a dead server's port in that range can end up connected to itself, and then holds the port."""

WATCHDOG = 'while read -r _; do :; done; kill -KILL "$1"'

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
        try:
            server.start()
            server.wait_ready(deadline_s, cancelled)
        except BaseException:
            server.kill()
            server.close()
            raise
    return server


class ZooKeeperServer:
    """A server of this process. `with` stops it at the end. Methods block; none is safe to call from two threads."""

    def __init__(self, directory: Path, settings: Settings, *, port: int = 0) -> None:
        """Locks the directory; nothing runs yet. The errors of `start_zookeeper`."""
        if not 0 <= port <= 65535:
            raise InvalidArgument(f"port {port}: needs 0 to 65535; 0 picks a free one")
        self.settings = settings
        self._context = None if settings.tls is None else client_context(settings.tls)
        self._command = java_command(
            settings, directory.absolute(), directory.absolute() / "zoo.cfg", directory.absolute() / "zookeeper.log"
        )
        self.directory = ServerDirectory(directory, settings.number)
        self._chosen = port == 0 and not settings.members
        self.port = port or self.directory.known_port
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`host:port`, as clients of this machine use it."""
        return join(loopback(self.settings.host), self.port)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> Path:
        return self.directory.log

    def start(self) -> None:
        """Spawn it; `wait_ready` tells when it serves. Started again after an end it has the port it had."""
        if self.alive:
            raise ZooKeeperFailed(f"{self.directory.path}: ZooKeeper runs already as process {self.pid}")
        if self.directory.lock < 0:
            raise ZooKeeperFailed(f"{self.directory.path}: this server was stopped for good; make another for it")
        self._reap()
        self._choose_port()
        self._spawn()

    def _choose_port(self) -> None:
        if self.port:
            try:
                check_port(self.settings.host, self.port)
                return
            except PortInUse:
                if not self._chosen:
                    raise
        self.port = free_port(self.settings.host)

    def _spawn(self) -> None:
        place = self.directory
        place.config.write_text(zoo_cfg(self.settings, place.data, self.port), encoding="ascii")
        environment = {key: value for key, value in os.environ.items() if key not in FOREIGN_VARIABLES}
        environment["LC_ALL"] = "C.UTF-8"  # else Java does not find a directory whose name is not ASCII
        place.begin_log()
        with place.out.open("wb") as out:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=place.path,
                env=environment,
                start_new_session=True,
                pass_fds=(place.lock,),
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "sh", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_ready(self, deadline_s: float = READY_SECONDS, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Returns once it answers requests (in an ensemble: once there is a quorum)."""
        limit = time.monotonic() + deadline_s
        attempts = ATTEMPTS
        within_s = FIRST_ANSWER_SECONDS
        while not (answer := self._serves(within_s)):
            within_s = min(2 * within_s, ANSWER_SECONDS) if answer is None else within_s
            if not self.alive:
                words = self.directory.last_words()
                attempts -= 1
                if "Address already in use" not in words:
                    code = self._process.returncode if self._process is not None else None
                    raise ZooKeeperFailed(f"{self.directory.path}: ZooKeeper ended with code {code}: {words}")
                if not self._chosen or not attempts:
                    raise _port_in_use(self.settings.host, self.port)
                self._reap()
                self.port = free_port(self.settings.host)
                self._spawn()
            if cancelled():
                raise ZooKeeperFailed(f"{self.directory.path}: ZooKeeper was stopped before it was ready")
            if time.monotonic() > limit:
                raise ZooKeeperFailed(
                    f"{self.directory.path}: ZooKeeper is not ready after {deadline_s:g} s; see {self.log}: "
                    f"{self.directory.last_words()}"
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

    def pause(self) -> None:
        """Stop the process in its tracks (SIGSTOP): connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9 and reap. `start` brings it back."""
        self._signal(signal.SIGKILL)
        self._reap()

    def restart(self, deadline_s: float = READY_SECONDS) -> None:
        """Kill it if it runs, start it again on the same port, wait until it serves."""
        self.kill()
        self.start()
        self.wait_ready(deadline_s)

    def stop(self, deadline_s: float = STOP_SECONDS) -> None:
        """Ask the server to end, reap it and unlock its directory; it is killed after the deadline. Idempotent."""
        self.ask_to_stop()
        self._reap(deadline_s)
        self.close()

    def ask_to_stop(self) -> None:
        """Send the signals that end the server, without waiting; the first step of `stop`."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Unlock the directory of a server that has ended."""
        self.directory.close()

    def __enter__(self) -> ZooKeeperServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _reap(self, deadline_s: float = STOP_SECONDS) -> None:
        if self._process is not None:
            try:
                self._process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.wait()
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog = None


def client_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return the TLS context for connections to a server with a certificate of this authority. Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=tls.ca)
    except OSError as error:
        raise ConfigError(f"{tls.ca}: no PEM file of certificates that can be read: {error}") from None


def check_port(host: str, port: int) -> None:
    """Raise PortInUse if another program listens there, ConfigError if the host is not this machine's."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _port_in_use(host, port) from None
        raise ConfigError(
            f"cannot listen on {join(host, port)}: {error.strerror}; --host needs an address of this machine, "
            "--port a port that you may use"
        ) from None


def _port_in_use(host: str, port: int) -> PortInUse:
    return PortInUse(f"port {port} of {host} is in use by another program; stop that one or choose another --port")


def free_port(host: str, taken: frozenset[int] = frozenset()) -> int:
    """Return a port that is not in use, outside the range of outgoing connections. Raises ZooKeeperFailed if none is
    found."""
    rng = random.SystemRandom()
    for _ in range(1000):
        port = rng.choice(PORTS)
        if port not in taken:
            with contextlib.suppress(PortInUse):
                check_port(host, port)
                return port
    raise ZooKeeperFailed(f"no free port of {host} in {PORTS.start}..{PORTS.stop - 1}; name one with --port")


# -- readiness probe ------------------------------------------------------------------------------------------

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
