"""Processes that put loads on a cluster, Apache's client or ours, and what the machine did while they counted."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
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
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        marks: dict[str, Snapshot] = {}
        for raw in process.stdout:
            answer = json.loads(raw)
            if "phase" in answer:
                marks[answer["phase"]] = snapshot(folder, process.pid, servers, others)
            elif "error" in answer:
                raise LoadFailed(f"{self.name} {request}: {answer['error']}")
            else:
                figures: dict[str, Any] = answer["result"]
                if len(marks) == 2:
                    figures |= between(marks["begin"], marks["end"], figures.get("entries", 0))
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


class Loaders:
    """One loader of each kind: "ours", "apache-2" and "apache-3" (their client on v2 and v3, compiled apart)."""

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
