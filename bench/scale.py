"""What an add costs a bookie as it grows: ledgers it has seen, connections it serves, gigabytes it stores.

Each measures one bookie at a few sizes; figures end in the size they belong to (bookie_cpu_us_at_1000).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

from bench.harness import Bench, cluster
from bench.ledgers import add_entry
from bench.machine import cpu_seconds, machine_busy, memory
from buckram.core.adds import ACK_BYTES, RECOVERY_ADD, frame_adds
from buckram.core.entry import Digest, master_key
from buckram.types import DigestType

Figures = dict[str, Any]
LEDGERS = tuple(int(n) for n in os.environ.get("BENCH_SCALE_LEDGERS", "1000,10000,100000,1000000").split(","))
CONNECTIONS = tuple(int(n) for n in os.environ.get("BENCH_SCALE_CONNECTIONS", "10,100,1000").split(","))
STORED_GB = tuple(float(n) for n in os.environ.get("BENCH_SCALE_GB", "1,5,10,20").split(","))
SECONDS = float(os.environ.get("BENCH_SECONDS", "15"))
RATE = 20_000
"""Adds a second over all connections."""
BATCH = 10
FIRST_MADE = 1 << 40
"""Ledgers of adds that no client made; far from those that metadata numbers."""


def _load(bench: Bench, figures: Figures, size: float, **options: object) -> None:
    """A write load on 100 ledgers (`options` may say otherwise), and what it costs at this size."""
    pid = bench.pids[0]
    busy, own, cpu = machine_busy(), os.times(), cpu_seconds(pid)
    began = time.monotonic()
    found = bench.write(**{"ensemble": "1/1/1", "ledgers": 100, "seconds": SECONDS, **options})
    cpu, seconds = cpu_seconds(pid) - cpu, time.monotonic() - began
    mine = os.times()
    client = mine.children_user + mine.children_system - own.children_user - own.children_system
    foreign = (machine_busy() - busy - cpu - client) / seconds / (os.cpu_count() or 1)
    figures["foreign_cpu"] = round(max(figures.get("foreign_cpu", 0.0), foreign), 3)
    at = f"at_{size:g}" if size < 1e5 else f"at_{size:.0f}"
    # The generator's warm-up is a tenth of the measured time and costs the bookie the same.
    figures[f"bookie_cpu_us_{at}"] = round(cpu / (1.1 * max(1, found["acked"])) * 1e6, 3)
    figures[f"adds_per_s_{at}"] = found["adds_per_s"]
    figures[f"p99_ms_{at}"] = found["p99_ms"]
    figures[f"rss_mb_{at}"] = round(memory(pid)["rss"] / 1e6, 1)


def ledgers() -> Figures:
    figures: Figures = {}
    with cluster(1) as bench:
        ready, known = bench.bookies[0].ready, 0
        assert ready is not None
        bench.write(ensemble="1/1/1", ledgers=100, seconds=2)
        for size in LEDGERS:
            add_entry(ready.port, range(FIRST_MADE + known, FIRST_MADE + size))
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
            ready = bench.bookies[0].ready
            assert ready is not None
            asyncio.run(_spread(ready.port, size, 2.0))
            cpu = cpu_seconds(bench.pids[0])
            added = asyncio.run(_spread(ready.port, size, SECONDS))
            figures[f"bookie_cpu_us_at_{size}"] = round((cpu_seconds(bench.pids[0]) - cpu) / added * 1e6, 3)
            figures[f"adds_per_s_at_{size}"] = round(added / SECONDS)
            figures[f"rss_mb_at_{size}"] = round(memory(bench.pids[0])["rss"] / 1e6, 1)
    return {**figures, **_flatness(figures)}


async def _spread(port: int, count: int, seconds: float) -> int:
    """RATE adds a second, in groups of ten, by turns over so many connections; how many were acknowledged."""
    links = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    digest, key, body = Digest(DigestType.CRC32C, b""), master_key(b""), [b"x" * 1024] * BATCH
    entries, acked, idle = [0] * count, 0, asyncio.Event()
    started = int(time.monotonic() * 1000)

    async def take(number: int) -> None:
        nonlocal acked
        while True:
            await links[number][0].readexactly(BATCH * ACK_BYTES)
            acked += BATCH
            if acked == sent:
                idle.set()

    sent = 0
    takers = [asyncio.ensure_future(take(number)) for number in range(count)]
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        while sent < now * RATE:
            number = sent // BATCH % count
            first = entries[number]
            ledger = FIRST_MADE + started * 2000 + number
            frames, _, _ = frame_adds(digest, key, ledger, first, first - 1, first * 1024, body, RECOVERY_ADD)
            links[number][1].write(b"".join(frames))
            entries[number] += BATCH
            sent += BATCH
        await asyncio.sleep(0.001)
    while acked < sent:
        idle.clear()
        async with asyncio.timeout(60):
            await idle.wait()
    for taker in takers:
        taker.cancel()
    await asyncio.gather(*takers, return_exceptions=True)
    for _, writer in links:
        writer.close()
    return acked


def _flatness(figures: Figures) -> Figures:
    """The dearest add through that at the smallest size."""
    costs: Sequence[float] = [value for name, value in figures.items() if name.startswith("bookie_cpu_us_at_")]
    return {"dearest_to_first": round(max(costs) / costs[0], 3)}
