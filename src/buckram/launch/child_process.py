"""Child processes of this one that serve at TCP ports: whether each lives, signals for it, its end, and which port is
free.

A metadata server is started, stopped, killed, paused, and started again. It ends when this process is gone, however
that died: a shell beside it waits for the end of its standard input. Its directory has a description, a file of JSON
that says which server this is, so that the same directory is the same server again, and a lock that keeps a second
server off it. Not here: bookies as child processes (`launch/processes.py`), what one kind of server needs
(`launch/etcd_server`, `launch/zookeeper_server`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Self, TypeVar

from buckram.addresses import join, loopback
from buckram.config import TlsConfig
from buckram.errors import BuckramError, ConfigError, CorruptStore, ForeignDirectory, PortInUse

PORTS = range(16_000, 32_000)
"""Where free ports are taken from: below the range that the kernel gives to outgoing connections, because a client that
retries a dead server's port in that range can end up connected to itself, and then holds the port."""


def check_port(host: str, port: int) -> None:
    """Raise PortInUse if another program listens there, ConfigError if the host is not this machine's."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise port_in_use(host, port) from None
        raise ConfigError(
            f"cannot listen on {join(host, port)}: {error.strerror}; --host needs an address of this machine, --port "
            "one that you may use"
        ) from None


def port_in_use(host: str, port: int) -> PortInUse:
    return PortInUse(f"port {port} of {host} is in use by another program; stop that one or choose another --port")


def free_port(host: str, taken: frozenset[int] = frozenset()) -> int:
    """Return a port that is not in use, outside the range of outgoing connections. Raises PortInUse if none is
    found."""
    rng = random.SystemRandom()
    for _ in range(1000):
        port = rng.choice(PORTS)
        if port not in taken:
            with contextlib.suppress(PortInUse):
                check_port(host, port)
                return port
    raise PortInUse(f"no free port of {host} in {PORTS.start}..{PORTS.stop - 1}; name one with --port")


FORMAT_VERSION = 1
LOCK = "lock"
LOCK_SECONDS = 2.0
POLL_SECONDS = 0.02


class ServerDirectory:
    """Opened means locked; the lock is inherited by the server, so that it outlives a parent that is killed."""

    def __init__(self, path: Path, description: str, owner: str, kind: str) -> None:
        """`description`: name of the file. `owner` and `kind`: the server in errors, such as "an etcd" and "etcd".
        Raises ForeignDirectory, ConfigError, OSError.
        """
        self.path = path.absolute()
        self._description = self.path / description
        self.path.mkdir(parents=True, exist_ok=True)
        self._check_ours(kind)
        self.lock = _lock(self.path / LOCK, owner)

    def _check_ours(self, kind: str) -> None:
        description = self._description.name
        names = sorted(set(os.listdir(self.path)) - {LOCK, "lost+found"})
        if names and description not in names and names != [description + ".new"]:
            raise ForeignDirectory(
                f"{self.path}: holds {names[0]!r} but no {description}, so no {kind} of Buckram's was started here; "
                "name an empty directory, or the one that an earlier start made"
            )

    def known(self) -> dict[str, object]:
        """Return the values of the description; empty if there is none. Raises CorruptStore."""
        return read_description(self._description)

    def write(self, values: dict[str, object]) -> None:
        write_description(self._description, values)

    def close(self) -> None:
        """Unlock the directory. Idempotent."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def _lock(path: Path, owner: str) -> int:
    """Waits a little: a server whose parent was killed is just ending."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    limit = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                os.close(descriptor)
                raise ConfigError(f"{path.parent}: {owner} runs on this directory; stop it or name another") from None
            time.sleep(POLL_SECONDS)
        else:
            return descriptor


def known_port(description: Path) -> int:
    """Return the port that the server of this description had, 0 when there was none."""
    port = read_description(description).get("port", 0)
    return port if isinstance(port, int) else 0


def read_description(path: Path) -> dict[str, object]:
    """Read a JSON object of ours; empty if there is none. Raises CorruptStore if this version did not write it."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CorruptStore(f"{path}: not JSON: {error}; restore the file from a backup") from None
    if not isinstance(found, dict) or found.get("format_version") != FORMAT_VERSION:
        raise CorruptStore(f"{path}: format version {FORMAT_VERSION} is needed; another version of Buckram made it")
    return found


def write_description(path: Path, values: dict[str, object]) -> None:
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps({"format_version": FORMAT_VERSION, **values}) + "\n")
    draft.replace(path)


def last_line(path: Path, missing: str) -> str:
    """Return the last line of a log; `missing` where it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return missing
    return lines[-1] if lines else "it logged nothing"


class ChildProcess:
    """Base of everything that is started here. Nothing runs yet."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def reap(self, deadline_s: float) -> int:
        """Wait for its end and return its exit code; it is killed after the deadline."""
        process = self._process
        if process is None:
            return 0
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return code


READY_SECONDS = 30.0
STOP_SECONDS = 10.0
WATCHDOG = 'while read -r _; do :; done; kill -KILL "$1"'


class ServerProcess(ChildProcess, ABC):
    """A server of this process. `with` stops it at the end. Methods block; none is safe to call from two threads."""

    KIND: ClassVar[str]
    """The server's name in errors."""
    FAILED: ClassVar[type[BuckramError]]
    """The error for a server that does not serve."""

    def __init__(self, directory: ServerDirectory, host: str, port: int, *, chosen: bool) -> None:
        """`chosen`: the port was chosen here, so that another one will do as well."""
        super().__init__()
        self._place, self._host, self._chosen = directory, host, chosen
        self.port = port
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`host:port`, as clients of this machine use it."""
        return join(loopback(self._host), self.port)

    def start(self) -> None:
        """Spawn it; `wait_ready` tells when it serves. Started again after an end it has the ports it had."""
        path = self._place.path
        if self.alive:
            raise self.FAILED(f"{path}: {self.KIND} runs already as process {self.pid}")
        if self._place.lock < 0:
            raise self.FAILED(f"{path}: this server was stopped for good; make another for it")
        self.reap()
        self.port = self._usable_port()
        self._spawn()

    def _usable_port(self) -> int:
        if self.port:
            try:
                check_port(self._host, self.port)
                return self.port
            except PortInUse:
                if not self._chosen:
                    raise
        return free_port(self._host)

    @abstractmethod
    def _spawn(self) -> None:
        """Start the process on `port`, by `_run`."""

    def _run(self, command: Sequence[str], output: IO[bytes], environment: Mapping[str, str]) -> None:
        """Start the process, which inherits the lock of its directory, and the shell beside it."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self._place.path,
            env=environment,
            start_new_session=True,
            pass_fds=(self._place.lock,),
        )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "sh", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @abstractmethod
    def wait_ready(self, deadline_s: float = READY_SECONDS, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Returns once it answers requests (of several servers: once there is a quorum)."""

    @property
    @abstractmethod
    def log(self) -> Path:
        """The server's log."""

    @abstractmethod
    def last_words(self) -> str:
        """Return what the server said last."""

    def pause(self) -> None:
        """Stop the process in its tracks (SIGSTOP): connections stay open and nothing answers."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9 and reap. `start` brings it back."""
        self.signal(signal.SIGKILL)
        self.reap()

    def restart(self, deadline_s: float = READY_SECONDS) -> None:
        """Kill it if it runs, start it again on the same port, wait until it serves."""
        self.kill()
        self.start()
        self.wait_ready(deadline_s)

    def stop(self, deadline_s: float = STOP_SECONDS) -> None:
        """Ask the server to end, reap it and unlock its directory; it is killed after the deadline. Idempotent."""
        self.ask_to_stop()
        self.reap(deadline_s)
        self.close()

    def ask_to_stop(self) -> None:
        """Send the signals that end the server, without waiting; the first step of `stop`."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)

    def close(self) -> None:
        """Unlock the directory of a server that has ended."""
        self._place.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def reap(self, deadline_s: float = STOP_SECONDS) -> int:
        code = super().reap(deadline_s)
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.wait()
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog = None
        return code


S = TypeVar("S", bound=ServerProcess)


def started(server: S, deadline_s: float, cancelled: Callable[[], bool]) -> S:
    """Start a server, wait until it serves, and return it; after an error it is killed, and its directory unlocked."""
    try:
        server.start()
        server.wait_ready(deadline_s, cancelled)
    except BaseException:
        server.kill()
        server.close()
        raise
    return server


def client_context(tls: TlsConfig | None) -> ssl.SSLContext | None:
    """Return the TLS context for connections to a server with a certificate of this authority; None without TLS. Raises
    ConfigError."""
    if tls is None:
        return None
    try:
        return ssl.create_default_context(cafile=tls.ca)
    except OSError as error:
        raise ConfigError(f"{tls.ca}: no PEM file of certificates that can be read: {error}") from None
