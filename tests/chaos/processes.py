"""Real bookies, writers and readers as operating-system processes, for tests that kill them.

Everything goes through the documented command line; nothing here imports the package.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUCKRAM = [sys.executable, "-m", "buckram"]
START_DEADLINE_S = 40.0


class ProcessFailed(AssertionError):
    """A command ended with an error or was not ready in time. The message has the end of its standard error."""


def environment(**extra: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BUCKRAM_")}
    return {**clean, "PYTHONUNBUFFERED": "1", **extra}


def run(arguments: Sequence[str], uri: str, *, deadline_s: float = 120.0) -> str:
    """Run a command to its end and return its standard output. Raises ProcessFailed unless its exit code is 0."""
    done = subprocess.run(
        [*BUCKRAM, *arguments],
        env=environment(BUCKRAM_METADATA=uri),
        capture_output=True,
        timeout=deadline_s,
        check=False,
    )
    if done.returncode != 0:
        raise ProcessFailed(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    return done.stdout.decode("utf-8", "surrogateescape")


def last_json(output: str) -> dict[str, Any]:
    value = json.loads(output.strip().splitlines()[-1])
    assert isinstance(value, dict)
    return value


@dataclass
class BookieProcess:
    """One bookie; `disk` is the value of BUCKRAM_DISK, empty for the ordinary disk."""

    uri: str
    directory: Path
    disk: str = ""
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    bookie_id: str = ""

    def start(self) -> None:
        log = self.directory.with_suffix(".log").open("ab")
        extra = {"BUCKRAM_DISK": self.disk} if self.disk else {}
        self.process = subprocess.Popen(
            [*BUCKRAM, "bookie", "run", "--metadata", self.uri, "--data", str(self.directory),
             "--host", "127.0.0.1", "--port", str(self.port), "--json"],
            env=environment(**extra), stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        log.close()
        ready = json.loads(self._ready_line())
        self.bookie_id, self.port = ready["id"], ready["port"]

    def _ready_line(self) -> bytes:
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(START_DEADLINE_S):
                raise ProcessFailed(f"bookie in {self.directory} is not ready after {START_DEADLINE_S} s")
        line = self.process.stdout.readline()
        if not line:
            log = self.directory.with_suffix(".log").read_text()[-2000:]
            raise ProcessFailed(f"bookie in {self.directory} ended before it was ready: {log}")
        return line

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def reap(self) -> None:
        if self.process is not None:
            self.process.wait(30)
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.reap()

    def stop(self) -> None:
        self.signal(signal.SIGTERM)
        try:
            self.reap()
        except subprocess.TimeoutExpired:
            self.kill()
            raise


@contextlib.contextmanager
def bookies(root: Path, count: int, *, disk: Callable[[int], str] = lambda _: "") -> Iterator[list[BookieProcess]]:
    """Start `count` bookies on one embedded metadata store below `root`; all are killed at the end."""
    uri = f"sqlite:///{(root / 'metadata.db').resolve().as_posix().lstrip('/')}"
    servers = [BookieProcess(uri, root / f"bookie{n}", disk(n)) for n in range(count)]
    try:
        for bookie in servers:
            bookie.start()
        yield servers
    finally:
        for bookie in servers:
            bookie.signal(signal.SIGKILL)
        for bookie in servers:
            bookie.reap()


@dataclass
class WriterProcess:
    """`buckram ledger write --acks`, which gets lines as fast as it reads them."""

    uri: str
    options: Sequence[str]
    line: Callable[[int], bytes]
    ledger: int = -1
    acked: int = -1
    ended: bool = False
    result: dict[str, Any] = field(default_factory=dict)
    _progress: threading.Condition = field(default_factory=threading.Condition)
    _stop_feeding: threading.Event = field(default_factory=threading.Event)

    def start(self, stderr: Path) -> None:
        with stderr.open("ab") as log:
            self.process = subprocess.Popen(
                [*BUCKRAM, "ledger", "write", *self.options, "--acks", "--close"],
                env=environment(BUCKRAM_METADATA=self.uri),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._feeder.start()
        self._listener.start()

    def _feed(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            number = 0
            while not self._stop_feeding.is_set():
                pipe.write(b"".join(self.line(n) + b"\n" for n in range(number, number + 200)))
                number += 200

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            for raw in pipe:
                if not raw.endswith(b"\n"):
                    break  # a line that the kill has cut off is no acknowledgement
                with self._progress:
                    value = json.loads(raw)
                    if isinstance(value, int):
                        self.acked = max(self.acked, value)
                    elif "entries" in value:
                        self.result = value
                    else:
                        self.ledger = value["ledger"]
                    self._progress.notify_all()
        with self._progress:
            self.ended = True
            self._progress.notify_all()

    def wait_acked(self, entry: int, deadline_s: float = 60.0) -> None:
        """Wait until `entry` is acknowledged. Raises ProcessFailed if the writer ends before, or after the deadline."""
        limit = time.monotonic() + deadline_s
        with self._progress:
            while self.acked < entry:
                if self.ended:
                    raise ProcessFailed(f"the writer ended at entry {self.acked}, before {entry}")
                if not self._progress.wait(max(0.0, limit - time.monotonic())):
                    raise ProcessFailed(f"the writer stands at entry {self.acked} and did not reach {entry}")

    def finish(self) -> dict[str, Any]:
        """End the input, so that the writer closes its ledger. Return the JSON that it prints."""
        self._stop_feeding.set()
        self._feeder.join(60)
        assert self.process.wait(60) == 0, "the writer failed"
        self._listener.join(60)
        return self.result

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._stop_feeding.set()
        self._feeder.join(30)
        self._listener.join(30)
