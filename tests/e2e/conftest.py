"""Shared by the end-to-end tests: the command as a child process, a running `buckram up`, and waiting for either."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 60


def gone(pid: int) -> bool:
    """Whether the process has ended, though nobody may have waited for it yet."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@dataclass
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        value = json.loads(self.out.strip().splitlines()[-1])
        assert isinstance(value, dict)
        return value


def environment(uri: str | None) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BUCKRAM_")}
    return {**clean, **({"BUCKRAM_METADATA": uri} if uri else {})}


def buckram(
    *words: object,
    uri: str | None = None,
    stdin: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Ended:
    """Run `buckram WORDS` to its end."""
    command = [sys.executable, "-m", "buckram", *map(str, words)]
    known = {**environment(uri), **(env or {})}
    done = subprocess.run(command, input=stdin, capture_output=True, env=known, cwd=cwd, timeout=DEADLINE_S)
    ended = Ended(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
    assert "Traceback" not in ended.err, ended.err
    return ended


class Up:
    """A `buckram up` that got ready; `ready` is its line."""

    def __init__(self, directory: Path, *options: object, env: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        words = [*map(str, options)] if "--gateway" in options else ["--no-gateway", *map(str, options)]
        command = [sys.executable, "-m", "buckram", "up", "--data", str(directory), "--json", *words]
        given = {**environment(None), **(env or {})}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=given)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"up ended: {self.process.communicate()[1].decode()}")
        self.ready: dict[str, Any] = json.loads(line)
        self.uri: str = self.ready["uri"]
        self.said = ""

    @property
    def pids(self) -> list[int]:
        return [bookie["pid"] for bookie in self.ready["bookies"]]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end. Returns the exit code; `said` is then the text on standard error."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.said = self.process.communicate(timeout=DEADLINE_S)[1].decode()
        finally:
            self.process.kill()
        return self.process.returncode


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("cluster") / "data", "--bookies", 3)
    yield running
    running.stop()
