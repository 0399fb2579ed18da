"""What objects do: puts of 1 KB by 64 tasks, and one large object put and got. 3/3/2."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from bench.streams import measure
from buckram import Client

Figures = dict[str, Any]
SECONDS = float(os.environ.get("BENCH_SECONDS", "15"))
LARGE_MB = int(os.environ.get("BENCH_OBJECT_MB", "1000"))
TASKS = 64
PIECE = os.urandom(1_000_000)


async def load(client: Client) -> Figures:
    """Small puts and gets a second, and megabytes a second of one large object."""
    async with client.objects() as objects:
        began, done = time.perf_counter(), 0

        async def put(task: int) -> None:
            nonlocal done
            while time.perf_counter() - began < SECONDS:
                await objects.put(f"small/{task}/{done}", PIECE[:1000])
                done += 1

        cpu = time.process_time()
        await asyncio.gather(*map(put, range(TASKS)))
        figures: Figures = {"puts_per_s": round(done / (time.perf_counter() - began))}
        figures["client_cpu_us_per_put"] = round((time.process_time() - cpu) / max(done, 1) * 1e6, 1)

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(LARGE_MB):
                yield PIECE

        began = time.perf_counter()
        await objects.put("large", pieces())
        figures["put_mb_per_s"] = round(LARGE_MB / (time.perf_counter() - began), 1)
        began, size = time.perf_counter(), 0
        async for piece in objects.read("large"):
            size += len(piece)
        figures["get_mb_per_s"] = round(size / 1e6 / (time.perf_counter() - began), 1)
    return figures


def objects() -> Figures:
    return measure(load)
