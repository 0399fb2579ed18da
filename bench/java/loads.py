"""Processes that put loads on a cluster, Apache's client or ours, and what the machine did while they counted."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from javakit import programs

from bench.machine import Snapshot, between, snapshot

SOURCES = Path(__file__).parent / "src" / "bench"
BUILD = Path("build/bench-java")
GC = "-XX:+UseParallelGC"
JVM = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", GC, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


def classes() -> str:
    return programs.class_path(sorted(SOURCES.glob("*.java")), BUILD)


class LoadFailed(RuntimeError):
    """A load ended with an error; the message is the load's own."""


@dataclass
class Loader:
    """One process that takes requests; begun with the first, ended by `close`."""

    name: str
    log: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def _start(self) -> subprocess.Popen[bytes]:
        if self.name.startswith("apache"):
            return programs.spawn(classes(), JVM, ["bench.Load"], self.log, talks=True)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "bench.java.ours"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    def ask(
        self, request: dict[str, Any], folder: Path, servers: Sequence[int] = (), others: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Run a load to its end. Returns, for the measured period, its own figures and those of this machine's counters
        (CPU of this client, of `servers` and of strangers, bytes on the disk below `folder`)."""
        marks: dict[str, Snapshot] = {}
        self.begin()

        def mark(phase: str) -> None:
            marks[phase] = snapshot(folder, [self.pid], servers, others)

        figures = self.told(request, mark)
        if len(marks) == 2:
            figures |= between(marks["begin"], marks["end"], figures.get("entries", 0))
        return figures

    def begin(self) -> None:
        """Start the process, unless it runs."""
        if self._process is None:
            self._process = self._start()

    def told(self, request: dict[str, Any], mark: Callable[[str], None]) -> dict[str, Any]:
        """Run a load to its end and return its own figures. `mark` is called at "begin" and "end" of what counts."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        for raw in process.stdout:
            answer = json.loads(raw)
            if "phase" in answer:
                mark(answer["phase"])
            elif "error" in answer:
                raise LoadFailed(f"{self.name} {request}: {answer['error']}")
            else:
                figures: dict[str, Any] = answer["result"]
                return figures
        raise LoadFailed(f"{self.name} ended in {request}; see {self.log}")

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            programs.end(process)
            if process.stdout is not None:
                process.stdout.close()


def ask_together(
    loaders: Sequence[Loader],
    request: dict[str, Any],
    folder: Path,
    servers: Sequence[int] = (),
    others: Sequence[int] = (),
) -> dict[str, Any]:
    """Run the same load in several processes at once; return the sum of what they did.

    What the machine did counts from when the last of them begins to when the first ends, and is divided by the entries
    of all. Latencies are the worst of any process.
    """
    marks: dict[str, Snapshot] = {}
    begun, lock = 0, threading.Lock()
    for loader in loaders:
        loader.begin()

    def mark(phase: str) -> None:
        nonlocal begun
        with lock:
            begun += phase == "begin"
            if phase == "begin" and begun < len(loaders):
                return
            marks.setdefault(phase, snapshot(folder, [one.pid for one in loaders], servers, others))

    with ThreadPoolExecutor(len(loaders)) as pool:
        found = list(pool.map(lambda loader: loader.told(request, mark), loaders))
    entries = sum(one["entries"] for one in found)
    seconds = marks["end"].at - marks["begin"].at
    counted = round(sum(one["per_s"] for one in found) * seconds)
    worst = {key: max(one[key] for one in found) for key in ("p50_ms", "p99_ms", "p999_ms", "max_ms")}
    return {
        "ledgers": [ledger for one in found for ledger in one["ledgers"]],
        "entries": entries,
        "per_s": sum(one["per_s"] for one in found),
        **worst,
        **between(marks["begin"], marks["end"], counted),
    }


class Loaders:
    """One loader of each kind: "ours", "apache-2" and "apache-3" (their client on v2 and v3, compiled apart).

    Those of a load of several processes have a number behind it, such as "ours#2".
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._known = folder, dict[str, Loader]()

    def __getitem__(self, name: str) -> Loader:
        if name not in self._known:
            self._known[name] = Loader(name, self._folder / f"client-{name}.log")
        return self._known[name]

    def forget(self, uri: str) -> None:
        """Make clients forget a cluster that is gone, so that they do not search for it any more."""
        for name, loader in self._known.items():
            if name.startswith("apache") and loader.pid:
                loader.ask({"load": "forget", "uri": uri}, self._folder)

    @property
    def pids(self) -> list[int]:
        return [loader.pid for loader in self._known.values() if loader.pid]

    def close(self) -> None:
        for loader in self._known.values():
            loader.close()
