"""Cost of an add for a bookie as it grows: ledgers it has seen, connections it serves, gigabytes it stores.

Each measures one bookie at a few sizes; figures end in the size they belong to (bookie_cpu_us_at_1000).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

from bench.harness import Bench, cluster
from bench.ledgers import add_entry, holds
from bench.machine import cpu_seconds, machine_busy, memory
from buckram.core.entries.entry import Digest, master_key
from buckram.core.wire.adds import ACK_BYTES, RECOVERY_ADD, frame_adds
from buckram.types import DigestType

Figures = dict[str, Any]
LEDGERS = tuple(int(n) for n in os.environ.get("BENCH_SCALE_LEDGERS", "1000,10000,100000,1000000").split(","))
CONNECTIONS = tuple(int(n) for n in os.environ.get("BENCH_SCALE_CONNECTIONS", "10,100,1000").split(","))
STORED_GB = tuple(float(n) for n in os.environ.get("BENCH_SCALE_GB", "1,5,10,20").split(","))
DELETED = int(os.environ.get("BENCH_DELETED", "100000"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "15"))
RATE = 20_000
"""Adds a second over all connections."""
BATCH = 10
SETTLED_S = 60.0
FIRST_MADE = 1 << 40
"""First id of ledgers that no client created; far from those that metadata assign."""


def _load(bench: Bench, figures: Figures, size: float) -> None:
    """Measure the cost of RATE adds a second on 100 ledgers at this size, when earlier work is finished. The rate is
    fixed, because at full speed the cost follows the size of groups, and that the speed of the moment."""
    pid, at = bench.pids[0], f"at_{size:g}" if size < 1e5 else f"at_{size:.0f}"
    figures[f"settled_s_{at}"] = round(_settle(pid), 1)
    busy, own, cpu = machine_busy(), os.times(), cpu_seconds(pid)
    began = time.monotonic()
    found = bench.write(ensemble="1/1/1", ledgers=100, rate=RATE, seconds=SECONDS)
    cpu, seconds = cpu_seconds(pid) - cpu, time.monotonic() - began
    mine = os.times()
    client = mine.children_user + mine.children_system - own.children_user - own.children_system
    foreign = (machine_busy() - busy - cpu - client) / seconds / (os.cpu_count() or 1)
    figures["foreign_cpu"] = round(max(figures.get("foreign_cpu", 0.0), foreign), 3)
    # The generator's warm-up is a tenth of the measured time and costs the bookie the same.
    figures[f"bookie_cpu_us_{at}"] = round(cpu / (1.1 * max(1, found["acked"])) * 1e6, 3)
    figures[f"adds_per_s_{at}"] = found["adds_per_s"]
    figures[f"p99_ms_{at}"] = found["p99_ms"]
    figures[f"rss_mb_{at}"] = round(memory(pid)["rss"] / 1e6, 1)


def _settle(pid: int) -> float:
    """Wait until the bookie has finished its earlier work, up to SETTLED_S seconds; return the seconds waited."""
    began, before = time.monotonic(), cpu_seconds(pid)
    while time.monotonic() - began < SETTLED_S:
        time.sleep(1.0)
        now = cpu_seconds(pid)
        if now - before < 0.03:
            break
        before = now
    return time.monotonic() - began


def ledgers() -> Figures:
    figures: Figures = {}
    with cluster(1) as bench:
        ready, known = bench.bookies[0].ready, 0
        assert ready is not None
        bench.write(ensemble="1/1/1", ledgers=100, seconds=2)
        for size in LEDGERS:
            add_entry(ready.port, range(FIRST_MADE + known, FIRST_MADE + size), host=ready.host)
            known = size
            _load(bench, figures, size)
    return {**figures, **_flatness(figures)}


def stored() -> Figures:
    figures: Figures = {}
    with cluster(1) as bench:
        written = 0.0
        for size in STORED_GB:
            while written < size:
                written += bench.write(ensemble="1/1/1", ledgers=10, seconds=5)["acked"] * 1.1 * 1024 / 1e9
            _load(bench, figures, size)
            written += figures[f"adds_per_s_at_{size:g}"] * SECONDS * 1024 / 1e9
    return {**figures, **_flatness(figures)}


def connections() -> Figures:
    figures: Figures = {}
    for size in CONNECTIONS:
        with cluster(1) as bench:
            ready, pid = bench.bookies[0].ready, bench.pids[0]
            assert ready is not None
            spread = _Spread(ready.host, ready.port, size)
            added, cpu = asyncio.run(spread.run(pid))
            figures[f"bookie_cpu_us_at_{size}"] = round(cpu / added * 1e6, 3)
            figures[f"adds_per_s_at_{size}"] = round(added / SECONDS)
            figures[f"rss_mb_at_{size}"] = round(memory(pid)["rss"] / 1e6, 1)
    return {**figures, **_flatness(figures)}


class _Spread:
    """Load of RATE adds a second, in groups of ten, by turns over `count` connections, each with a ledger of its
    own."""

    def __init__(self, host: str, port: int, count: int) -> None:
        self._host, self._port, self._count = host, port, count
        self._entries = [0] * count
        self._acked, self._sent = 0, 0
        self._idle = asyncio.Event()

    async def run(self, pid: int) -> tuple[int, float]:
        """Return the number of acknowledged adds in SECONDS after every ledger was seen, and the bookie's CPU
        seconds."""
        links = [await asyncio.open_connection(self._host, self._port) for _ in range(self._count)]
        takers = [asyncio.ensure_future(self._take(reader)) for reader, _ in links]
        writers = [writer for _, writer in links]
        await self._send(writers, max(2.0, 2 * self._count * BATCH / RATE))
        before, cpu = self._acked, cpu_seconds(pid)
        await self._send(writers, SECONDS)
        cpu = cpu_seconds(pid) - cpu
        for taker in takers:
            taker.cancel()
        await asyncio.gather(*takers, return_exceptions=True)
        for writer in writers:
            writer.close()
        return self._acked - before, cpu

    async def _take(self, reader: asyncio.StreamReader) -> None:
        while True:
            await reader.readexactly(BATCH * ACK_BYTES)
            self._acked += BATCH
            if self._acked == self._sent:
                self._idle.set()

    async def _send(self, writers: Sequence[asyncio.StreamWriter], seconds: float) -> None:
        """Send adds for `seconds` seconds, and wait until all are acknowledged."""
        digest, key, body = Digest(DigestType.CRC32C, b""), master_key(b""), [b"x" * 1024] * BATCH
        began, start = time.monotonic(), self._sent
        while (now := time.monotonic() - began) < seconds:
            while self._sent - start < now * RATE:
                number = self._sent // BATCH % self._count
                first = self._entries[number]
                frames, _, _ = frame_adds(
                    digest, key, FIRST_MADE + number, first, first - 1, first * 1024, body, RECOVERY_ADD
                )
                writers[number].write(frames)
                self._entries[number] += BATCH
                self._sent += BATCH
            await asyncio.sleep(0.001)
        while self._acked < self._sent:
            self._idle.clear()
            async with asyncio.timeout(60):
                await self._idle.wait()


def deletion() -> Figures:
    """Paced writing on a bookie, first alone, then while it drops very many ledgers that are deleted in metadata."""
    quick = {"BUCKRAM_BOOKIE_COLLECTION_INTERVAL_S": "5", "BUCKRAM_BOOKIE_COLLECTION_AGE_S": "5"}
    paced = {"ensemble": "1/1/1", "ledgers": 1, "rate": 5000, "seconds": max(20.0, SECONDS)}
    with cluster(1, environment=quick) as bench:
        ready = bench.bookies[0].ready
        assert ready is not None
        alone = bench.write(**paced)
        # Nothing is in metadata for these, which is what a bookie sees of deleted ones.
        add_entry(ready.port, range(FIRST_MADE, FIRST_MADE + DELETED), host=ready.host)
        beside = bench.write(**paced)
        sampled = range(FIRST_MADE, FIRST_MADE + DELETED, max(1, DELETED // 100))
        left = sum(holds(ready.port, ledger, host=ready.host) for ledger in sampled)
        return {
            "p99_ms_alone": alone["p99_ms"], "p99_ms": beside["p99_ms"], "p999_ms_alone": alone["p999_ms"],
            "p999_ms": beside["p999_ms"], "dropped_share": round(1 - left / len(sampled), 2), "ledgers": DELETED,
        }  # fmt: skip


def _flatness(figures: Figures) -> Figures:
    """Return the highest cost of an add divided by that at the smallest size."""
    costs: Sequence[float] = [value for name, value in figures.items() if name.startswith("bookie_cpu_us_at_")]
    return {"dearest_to_first": round(max(costs) / costs[0], 3)}
