"""A child process of this one: whether it lives, signals for it, and its end."""

from __future__ import annotations

import signal
import subprocess


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
