"""Bookies as child processes of this one: start, ready line, stop, kill.

Used by `buckram up`, by the benchmarks and by examples. A child lives in a process group of its own, so that
Ctrl-C in a terminal reaches only the parent, which then stops its children in order; and it ends by itself when
its parent is gone, however that died, because its standard input then closes.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from buckram.errors import ChildFailed
from buckram.launch.child_process import ChildProcess, last_line
from buckram.types import BookieId

READY_SECONDS = 60.0
STOP_SECONDS = 20.0
SLICE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ReadyLine:
    """Line that a bookie prints once it is registered and serves."""

    bookie_id: BookieId
    host: str
    port: int
    pid: int
    http: str | None = None
    """HOST:PORT of its HTTP API; None: it has none."""

    def as_json(self) -> dict[str, str | int | None]:
        return {"id": self.bookie_id, "host": self.host, "port": self.port, "pid": self.pid, "http": self.http}


class BookieProcess(ChildProcess):
    """One `buckram bookie run` of this parent. Standard error goes to `log`, appended.

    `launcher` stands before the command and must become it (exec): so the process id is that of the bookie.
    """

    def __init__(
        self,
        uri: str,
        directory: Path,
        *,
        bookie_id: BookieId = "",
        host: str = "127.0.0.1",
        port: int = 0,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        launcher: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.directory = directory
        self.log = log or directory.with_name(directory.name + ".log")
        self.ready: ReadyLine | None = None
        self._environment = {**os.environ, **(environment or {})}
        self._command = [*launcher, sys.executable, "-m", "buckram", "bookie", "run", "--metadata", uri]
        self._command += ["--data", str(directory)]
        self._command += ["--host", host, "--json", "--until-stdin-closes", *options]
        self._command += ["--id", bookie_id] if bookie_id else []
        self._port = port

    def start(self) -> None:
        """Spawn it; wait_ready tells when it serves. A restarted bookie requests its earlier port."""
        if self.alive:
            raise ChildFailed(f"the bookie in {self.directory} runs already as process {self.pid}")
        self.reap()
        port = self.ready.port if self.ready is not None else self._port
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "--port", str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        self.ready = None

    def wait_ready(self, deadline_s: float = READY_SECONDS, cancelled: Callable[[], bool] = lambda: False) -> ReadyLine:
        """Return the ready line; raises ChildFailed when the process ends before or takes longer than the deadline.

        `cancelled` is asked now and then and ends the wait.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        limit, line = time.monotonic() + deadline_s, b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if cancelled():
                    raise ChildFailed(f"{self.directory}: the bookie was stopped before it was ready")
                left = limit - time.monotonic()
                if not selector.select(max(0.0, min(left, SLICE_SECONDS))):
                    if left > 0:
                        continue
                    raise ChildFailed(f"{self.directory}: no ready line after {deadline_s:g} s; see {self.log}")
                piece = os.read(self._process.stdout.fileno(), 4096)
                if not piece:
                    code = self._process.wait()
                    raise ChildFailed(f"the bookie in {self.directory} ended with code {code}: {self.last_words()}")
                line += piece
        said = json.loads(line)
        self.ready = ReadyLine(said["id"], said["host"], said["port"], said["pid"], said.get("http"))
        return self.ready

    def last_words(self) -> str:
        """Return the last line of its log."""
        return last_line(self.log, f"no log at {self.log}")

    def kill(self) -> None:
        """kill -9 and reap."""
        self.signal(signal.SIGKILL)
        self.reap()

    def stop(self, deadline_s: float = STOP_SECONDS) -> int:
        """Ask it to end, reap it, give its exit code; killed when it takes longer than the deadline."""
        self.signal(signal.SIGTERM)
        return self.reap(deadline_s)

    def reap(self, deadline_s: float = STOP_SECONDS) -> int:
        return super().reap(deadline_s)


def stop_all(children: Sequence[BookieProcess], deadline_s: float = STOP_SECONDS) -> None:
    """Stop them side by side."""
    for child in children:
        child.signal(signal.SIGTERM)
    limit = time.monotonic() + deadline_s
    for child in children:
        child.reap(max(0.1, limit - time.monotonic()))
