"""One process of the cluster under test: started on its machine, killed, stopped for a while, started again."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

READY_S = 180.0
PYTHON = sys.executable
_TIED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
"""The process is killed (9) when this one has died (PR_SET_PDEATHSIG is 1), however that came about."""


class ProcessFailed(RuntimeError):
    """A process did not become ready, or did not end after the signal to end."""


def clean_environment() -> dict[str, str]:
    """Return this process's environment without the variables of Buckram."""
    return {key: value for key, value in os.environ.items() if not key.startswith("BUCKRAM_")}


@dataclass
class Child:
    """A program with the arguments that it is started with again. `ready`: it prints a line of JSON when it serves."""

    name: str
    machine: int
    command: Sequence[str]
    log: Path
    launcher: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: bool = False
    starts: int = 0
    started_at: float = 0.0
    said: dict[str, Any] = field(default_factory=dict)
    """Contents of the line that it printed when it was ready."""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it serves. Raises ProcessFailed when it does not become ready."""
        self.spawn()
        self.wait_ready()

    def spawn(self) -> None:
        """Start it if it does not run, and wait for nothing."""
        if self.running:
            return
        self._reap()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.launcher, PYTHON, "-S", "-c", _TIED, *self.command],
                env={**clean_environment(), "PYTHONUNBUFFERED": "1", **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.ready else log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1
        self.started_at = time.monotonic()

    def wait_ready(self) -> None:
        if self.ready:
            self.said = json.loads(self._ready_line())

    def _ready_line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(READY_S):
                self.kill()
                raise ProcessFailed(f"{self.name} is not ready after {READY_S:g} s: see {self.log}")
        line = self._process.stdout.readline()
        if not line:
            raise ProcessFailed(f"{self.name} ended before it was ready: see {self.log}")
        return line

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children, if it runs."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._reap()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def stop(self, within_s: float = 180.0) -> bool:
        """End it properly; False when it had to be killed."""
        if self._process is None:
            return True
        self.resume()
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        self._reap()
        return True

    def _reap(self) -> None:
        if self._process is None:
            return
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
