"""Apache's Java software: found with Maven, compiled with the programs beside this file, run as processes.

Finding and compiling is javakit's. Not here: what is checked (java/src, test_*.py), clusters (clusters.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from javakit import programs
from javakit.programs import NEWEST, end

from buckram.launch.child_process import free_port

SOURCES = Path(__file__).parent / "java" / "src" / "interop"
BUILD = Path(__file__).parents[2] / "build" / "interop"
NOT_IN_OLDER = ("BatchChecks.java", "PlainHttp.java", "RecentChecks.java")
"""Sources for what the older release line does not have."""
START_DEADLINE_S = 60.0
CALL_DEADLINE_S = 60.0
# JVMs that start fast and stay small.
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError")


class JavaFailed(AssertionError):
    """A call failed in Java; `error` is the class of the exception there."""

    def __init__(self, call: str, error: str, detail: str) -> None:
        super().__init__(f"{call}: {detail}")
        self.error = error


def class_path(line: str) -> str:
    """Jars and compiled programs of a release line ("newest", "older"); NoJava when they cannot be had."""
    sources = sorted(path for path in SOURCES.glob("*.java") if line == NEWEST or path.name not in NOT_IN_OLDER)
    return programs.class_path(sources, BUILD, line)


def spawn(
    line: str, arguments: Sequence[str], log: Path, *, heap_mb: int, talks: bool, options: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """A JVM that ends when its standard input closes (that is up to what it runs: Main and Guarded do)."""
    limits = [f"-Xmx{heap_mb}m", f"-XX:MaxDirectMemorySize={heap_mb}m"]
    return programs.spawn(class_path(line), [*limits, *JVM, *options], arguments, log, talks=talks)


class Java:
    """The process that runs checks and single steps (java/src/interop/Main). Calls may overlap, from any thread."""

    def __init__(self, line: str, log: Path, options: Sequence[str] = ()) -> None:
        self.line, self.log = line, log
        self._process = spawn(line, ["interop.Main"], log, heap_mb=768, talks=True, options=options)
        self._waiting: dict[int, tuple[str, Future[Any]]] = {}
        self._lock = threading.Lock()
        self._next = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, call: str, **args: object) -> Future[Any]:
        """Begin a call; the future gives its value or JavaFailed."""
        future: Future[Any] = Future()
        with self._lock:
            self._next += 1
            number = self._next
            self._waiting[number] = call, future
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"id": number, "call": call, "args": args}).encode() + b"\n")
            self._process.stdin.flush()
        return future

    def call(self, call: str, **args: object) -> Any:
        return self.start(call, **args).result(CALL_DEADLINE_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            for raw in pipe:
                answer = json.loads(raw)
                with self._lock:
                    call, future = self._waiting.pop(answer["id"])
                if answer["ok"]:
                    future.set_result(answer["value"])
                else:
                    future.set_exception(JavaFailed(call, answer["error"], answer["detail"]))
        with self._lock:
            orphans, self._waiting = self._waiting, {}
        for call, future in orphans.values():
            future.set_exception(JavaFailed(call, "Ended", f"the Java process ended, see {self.log}"))

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        end(self._process)
        self._reader.join(10)


async def outcome(call: Future[Any], deadline_s: float = CALL_DEADLINE_S) -> Any:
    """Wait for a call without stopping the loop."""
    async with asyncio.timeout(deadline_s):
        return await asyncio.wrap_future(call)


# Small files and caches; otherwise Apache's defaults, journal syncs included.
BOOKIE_SETTINGS: Mapping[str, object] = {
    "allowLoopback": "true", "listeningInterface": "lo",
    "httpServerEnabled": "false", "diskUsageThreshold": "0.99", "diskUsageWarnThreshold": "0.985",
    "journalPreAllocSizeMB": 4, "journalMaxSizeMB": 64, "entryLogFilePreallocationEnabled": "false",
    "logSizeLimit": 64 << 20, "skipListSizeLimit": 16 << 20, "pageLimit": 1000, "gcWaitTime": 3_600_000,
    "zkTimeout": 3000, "numReadWorkerThreads": 2, "numHighPriorityWorkerThreads": 2, "serverNumIOThreads": 1,
}  # fmt: skip


@dataclass
class ApacheBookie:
    """Apache's own bookie as a process of its own (org.apache.bookkeeper.server.Main). Its id is host:port."""

    uri: str
    directory: Path
    line: str = NEWEST
    port: int = 0
    settings: Mapping[str, object] = field(default_factory=dict)
    options: Sequence[str] = ()
    host: str = "127.0.0.1"
    process: subprocess.Popen[bytes] | None = None
    spawned_ms: int = 0

    @property
    def bookie_id(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self.process is not None

    @property
    def log(self) -> Path:
        return self.directory.with_suffix(".log")

    def spawn(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.port = self.port or free_port(self.host)
        settings = {
            **BOOKIE_SETTINGS, "advertisedAddress": self.host, "bookiePort": self.port, "metadataServiceUri": self.uri,
            "journalDirectories": self.directory / "journal", "ledgerDirectories": self.directory / "ledgers",
            **self.settings,
        }  # fmt: skip
        conf = self.directory / "bookie.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        main = ["interop.Guarded", "org.apache.bookkeeper.server.Main", "--conf", str(conf)]
        self.spawned_ms = time.time_ns() // 1_000_000
        self.process = spawn(self.line, main, self.log, heap_mb=256, talks=False, options=self.options)

    def wait_ready(self, registered_ms: Callable[[str], int]) -> None:
        """Wait until it listens and has registered since its start; an older registration does not count."""
        limit = time.monotonic() + START_DEADLINE_S
        while True:
            assert self.process is not None
            assert self.process.poll() is None, f"bookie ended: {self.log.read_text()[-3000:]}"
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 1):
                if registered_ms(self.bookie_id) >= self.spawned_ms:
                    return
            assert time.monotonic() < limit, f"bookie is not ready: {self.log.read_text()[-3000:]}"
            time.sleep(0.02)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self._reap()

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self._reap()

    def _reap(self) -> None:
        process, self.process = self.process, None
        assert process is not None
        end(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def running(line: str, log: Path, options: Sequence[str] = ()) -> Iterator[Java]:
    java = Java(line, log, options)
    try:
        yield java
    finally:
        java.close()
