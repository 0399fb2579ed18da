"""Speed of healing lost copies: bookies, ledgers, a bookie that is killed, and one autorecovery process.

The ledgers are on three bookies; a fourth, empty one joins before one of the three is killed. Times count from the
kill (`seconds`) and from the first copied byte (`mb_per_s`, `ledgers_per_s`) to the moment when no mark is left.
Not here: audits without copies (`audits.py`), the same beside Apache's worker (`healing_java.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness import Bench, cluster
from bench.machine import Watch, cpu_seconds, memory
from bench.machines import helpers
from buckram import connect
from buckram.cluster import Client
from buckram.config import HealingConfig
from buckram.core.healing.needs import members_of
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.underreplication import Underreplication
from buckram.metadata.uri import open_store
from buckram.seams import MetadataStore
from buckram.types import BookieId

Figures = dict[str, Any]
GIB = 1024**3
ENTRY = 1024
HEAL_GIB = float(os.environ.get("BENCH_HEAL_GIB", "6"))
LEDGERS = int(os.environ.get("BENCH_HEAL_LEDGERS", "1000"))
SMALL = int(os.environ.get("BENCH_HEAL_SMALL", "10000"))
SMALL_ENTRIES = 4
LEDGER_GIB = float(os.environ.get("BENCH_HEAL_LEDGER_GIB", "3"))
DETECTIONS = 3
FOREGROUND_S, FOREGROUND_TURNS = float(os.environ.get("BENCH_SECONDS", "15")), 3
_START_S = 3.0
"""Approximate seconds that a load needs to start and end."""
_WRITERS, _MANY_WRITERS = 8, 64
_CHUNK = 2000
_ON_THE_WAY = 16 * 1024 * 1024
"""Bytes that all writers together may have on the way: a slow disk has to take them within a client's time-out."""
_LOOK_S = 0.05
_COPY_BYTES = 4 * 1024 * 1024
_WITHIN_S = 1800.0


@dataclass
class Healer:
    """A `buckram autorecovery run`."""

    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def peak_mb(self) -> float:
        return round(memory(self.pid)["peak"] / 1e6, 1)


@dataclass
class Healed:
    """Events from the kill of a bookie to the removal of the last mark, in seconds of one clock."""

    killed: float
    marked: float = 0.0
    first_byte: float = 0.0
    end: float = 0.0
    bytes: int = 0
    ledgers: int = 0
    most_marked: int = field(default=0, repr=False)

    def figures(self) -> Figures:
        took = max(1e-9, self.end - self.first_byte)
        return {
            "seconds": round(self.end - self.killed, 2),
            "first_copy_s": round(self.first_byte - self.killed, 2),
            "copied_mb": round(self.bytes / 1e6, 1),
            "mb_per_s": round(self.bytes / took / 1e6, 1),
            "copied_ledgers": self.ledgers,
            "ledgers_per_s": round(self.ledgers / took),
        }


@contextlib.contextmanager
def healer(uri: str, **settings: object) -> Iterator[Healer]:
    """Yield one worker process with an auditor; `settings` are those of [healing]. The defaults are no delay and no
    rate limit."""
    given = {"lost_bookie_delay_s": 0, "copy_bytes_per_s": 0, **settings}
    environment = {**os.environ, **{f"BUCKRAM_HEALING_{name.upper()}": str(value) for name, value in given.items()}}
    command = [sys.executable, "-m", "buckram", "autorecovery", "run", "--metadata", uri, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            raise RuntimeError(f"autorecovery ended with {process.wait()}")
        yield Healer(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        process.stdout.close()


@contextlib.asynccontextmanager
async def looking(uri: str) -> AsyncIterator[MetadataStore]:
    store = await open_store(uri)
    try:
        yield store
    finally:
        await store.close()


async def fill(uri: str, ledgers: int, entries: int, size: int = ENTRY, ensemble: str = "3/3/2") -> list[int]:
    """Make closed ledgers with `entries` entries each, a few at a time; return their ids."""
    payloads = [random.randbytes(size) for _ in range(64)]
    left, made = iter(range(ledgers)), list[int]()

    async def writer(client: Client) -> None:
        for _ in left:
            async with client.create(ensemble=ensemble) as ledger:
                for start in range(0, entries, _CHUNK):
                    await ledger.append_many([payloads[n % 64] for n in range(min(_CHUNK, entries - start))])
            made.append(ledger.ledger_id)

    writers = max(_WRITERS, min(_MANY_WRITERS, _ON_THE_WAY // (min(entries, _CHUNK) * size)))
    async with connect(uri) as client:
        await asyncio.gather(*(writer(client) for _ in range(writers)))
    return sorted(made)


async def until_healed(store: MetadataStore, killed: float, ledgers: int, *, reports: bool = True) -> Healed:
    """Follow the marks and the workers' reports until `ledgers` were marked and none is any more.

    Without `reports`, which Apache's workers do not write: until none is marked that was.
    """
    tree, board, seen = Underreplication(store.keys, store.root, ""), HealingStatusStore(store), Healed(killed)
    before = await copied(board)
    while time.monotonic() - killed < _WITHIN_S:
        count, size = await copied(board)
        now = time.monotonic()
        if size > before[1] and not seen.first_byte:
            seen.first_byte = now
        seen.ledgers, seen.bytes = count - before[0], size - before[1]
        # A look at the marks costs ZooKeeper a listing of all of them: not before the reports say that none is left.
        looks = not reports or not seen.marked or seen.ledgers >= ledgers
        left = await any_mark(tree) if looks else True
        if left and not seen.marked:
            seen.marked = now
        if not left and (seen.ledgers >= ledgers if reports else seen.marked):
            seen.end = time.monotonic()
            return seen
        await asyncio.sleep(_LOOK_S)
    raise RuntimeError(f"{seen.ledgers} of {ledgers} ledgers were healed in {_WITHIN_S:g} s")


async def copied(board: HealingStatusStore) -> tuple[int, int]:
    """Ledgers and bytes, by the reports of the workers that live."""
    reports = await board.progress()
    return sum(one.copied_ledgers for one in reports), sum(one.copied_bytes for one in reports)


async def any_mark(tree: Underreplication) -> bool:
    async for _ in tree.marked():
        return True
    return False


async def check_copies(store: MetadataStore, ledgers: list[int], dead: BookieId) -> None:
    """Raise RuntimeError if one of a sample of ledgers still names the bookie."""
    for ledger in random.sample(ledgers, min(200, len(ledgers))):
        if dead in members_of((await store.read_ledger(ledger)).metadata):
            raise RuntimeError(f"ledger {ledger} still names {dead} although no mark is left")


async def heal(bench: Bench, ledgers: list[int], number: int = 0) -> Healed:
    """Kill a bookie and wait until its copies are made again; a worker has to run already."""
    dead = bench.bookies[number]
    assert dead.ready is not None
    async with looking(bench.uri) as store:
        dead.kill()
        seen = await until_healed(store, time.monotonic(), len(ledgers))
        await check_copies(store, ledgers, dead.ready.bookie_id)
    return seen


def plain_copy(source: Path, folder: Path, limit: int) -> float:
    """Bytes a second of copying up to `limit` bytes of a bookie's files, all on the disk at the end, in their order."""
    target, copied, began = folder / "plain-copy", 0, time.monotonic()
    buffer = memoryview(bytearray(_COPY_BYTES))
    try:
        with target.open("wb", buffering=0) as out:
            for path in sorted(source.iterdir()):
                if not path.is_file() or copied >= limit:
                    continue
                with path.open("rb", buffering=0) as into:
                    while copied < limit and (count := into.readinto(buffer)):
                        out.write(buffer[:count])
                        os.fdatasync(out.fileno())
                        copied += count
        return copied / (time.monotonic() - began)
    finally:
        target.unlink(missing_ok=True)


def measure(ledgers: int, entries: int, **options: Any) -> Figures:
    """Measure one worker that replaces a bookie's copies of `ledgers` ledgers, and a plain copy of as many bytes."""
    with cluster(3, **options) as bench:
        made = asyncio.run(fill(bench.uri, ledgers, entries))
        bench.add()
        with healer(bench.uri) as worker:
            living = bench.pids[1:]
            before = cpu_seconds(worker.pid), sum(map(cpu_seconds, living))
            with Watch(bench.folder, [*living, worker.pid, *helpers()]) as watch:
                seen = asyncio.run(heal(bench, made))
            spent = cpu_seconds(worker.pid) - before[0], sum(map(cpu_seconds, living)) - before[1]
            figures = {**seen.figures(), "worker_peak_mb": worker.peak_mb, **_costs(spent, seen)}
        copied = plain_copy(bench.bookies[1].directory, bench.folder, seen.bytes)
        return {**figures, "plain_copy_mb_per_s": round(copied / 1e6, 1), "foreign_cpu": watch.foreign_share}


def _costs(spent: tuple[float, float], seen: Healed) -> Figures:
    """CPU of the worker, and of all bookies together, which other load on the machine changes little."""
    parts = zip(("worker", "bookies"), spent, strict=True)
    if seen.ledgers > LEDGERS:
        return {f"{who}_cpu_us_per_ledger": round(cpu / seen.ledgers * 1e6) for who, cpu in parts}
    return {f"{who}_cpu_s_per_gb": round(cpu / seen.bytes * 1e9, 2) for who, cpu in parts}


def detect() -> Figures:
    """Medians and the worst of a few trials, each with bookies of its own."""
    first: list[float] = []
    with_foreign = 0.0
    for _ in range(DETECTIONS):
        found = measure(4, 100)
        first.append(found["first_copy_s"])
        with_foreign = max(with_foreign, found["foreign_cpu"])
    return {"first_copy_s": statistics.median(first), "first_copy_worst_s": max(first), "foreign_cpu": with_foreign}


def memory_of_worker() -> Figures:
    """One ledger of several GB."""
    return measure(1, int(LEDGER_GIB * GIB / ENTRY))


def foreground() -> Figures:
    """Alternate turns of paced writing: nothing is copied, copies are made at the default rate."""
    rate = HealingConfig().copy_bytes_per_s
    needed = FOREGROUND_TURNS * rate * (FOREGROUND_S * 1.1 + _START_S)
    p99: dict[bool, list[float]] = {False: [], True: []}
    with cluster(3) as bench:
        asyncio.run(fill(bench.uri, LEDGERS, max(1, int(needed / LEDGERS / ENTRY))))
        bench.add()
        bench.run("autorecovery", "disable")
        with healer(bench.uri, copy_bytes_per_s=rate) as worker:
            bench.bookies[0].kill()
            with Watch(bench.folder, [*bench.pids, worker.pid, *helpers()]) as watch:
                for _ in range(FOREGROUND_TURNS):
                    for copying in (False, True):
                        bench.run("autorecovery", "enable" if copying else "disable")
                        p99[copying].append(bench.write(ledgers=1, rate=5000, seconds=FOREGROUND_S)["p99_ms"])
                size, left = asyncio.run(_progress(bench.uri))
        if not left:
            raise RuntimeError("everything was copied before the last turn was over: fill more")
        alone, beside = statistics.median(p99[False]), statistics.median(p99[True])
        return {
            "p99_ms_alone": alone, "p99_ms": beside, "p99_ratio": round(beside / alone, 2),
            "copied_mb": round(size / 1e6, 1), "foreign_cpu": watch.foreign_share,
        }  # fmt: skip


async def _progress(uri: str) -> tuple[int, bool]:
    """Bytes that were copied, and whether anything is still marked."""
    async with looking(uri) as store:
        return (await copied(HealingStatusStore(store)))[1], await any_mark(
            Underreplication(store.keys, store.root, "")
        )


def large() -> Figures:
    return measure(LEDGERS, max(1, int(HEAL_GIB * GIB / LEDGERS / ENTRY)))


def small() -> Figures:
    figures: Figures = {}
    for store in ("sqlite", "zookeeper"):
        found = measure(SMALL, SMALL_ENTRIES, metadata=store)
        figures |= {f"{name}_{store}": value for name, value in found.items() if name != "foreign_cpu"}
        figures["foreign_cpu"] = max(figures.get("foreign_cpu", 0.0), found["foreign_cpu"])
    return figures
