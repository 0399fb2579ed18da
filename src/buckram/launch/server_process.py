"""A metadata server as a child process: start, stop, kill, pause, start again.

The process ends when this one is gone, however that died: a shell beside it waits for the end of its standard input.
"""

from __future__ import annotations

import signal
import ssl
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Self, TypeVar

from buckram.addresses import join, loopback
from buckram.config import TlsConfig
from buckram.errors import BuckramError, ConfigError, PortInUse
from buckram.launch.child_process import ChildProcess
from buckram.launch.ports import check_port, free_port
from buckram.launch.server_directory import ServerDirectory

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
