"""`buckram db serve` as a child process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from types import TracebackType
from typing import Any


class ServeProcess:
    """A server of databases in a process of its own. `with` ends it as SIGTERM does."""

    def __init__(self, uri: str, *names: str) -> None:
        """Without names: a gateway, which serves all databases."""
        words = ["db", "serve", *names] if names else ["gateway"]
        command = [sys.executable, "-m", "buckram", *words, "--metadata", uri, "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"buckram {words[0]} ended with {self.process.wait()}"
        self.ready: dict[str, Any] = json.loads(line)
        self.url: str = self.ready["url"]

    def kill(self) -> None:
        """As kill -9."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.stop()
        assert self.process.stdout is not None
        self.process.stdout.close()
