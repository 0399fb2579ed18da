"""What objects do: puts of 1 KB by 64 tasks, and one large object put and got, 3/3/2; and a million names."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from bench.machine import memory
from bench.streams import measure
from buckram import Client
from buckram.core.objects.index import ObjectIndex
from buckram.machine.machine import ClassState

Figures = dict[str, Any]
SECONDS = float(os.environ.get("BENCH_SECONDS", "15"))
LARGE_MB = int(os.environ.get("BENCH_OBJECT_MB", "1000"))
NAMES = int(os.environ.get("BENCH_OBJECT_NAMES", "1000000"))
TASKS = 64
PIECE = os.urandom(1_000_000)


def _named(index: ObjectIndex, number: int) -> None:
    put = {"size": 1000, "digest": f"sha256:{number:064x}", "sealed": [], "metadata": [], "expires_us": 0}
    put["extents"] = [[1, number // 256, number % 256 * 1000, 1000, 0]]
    index.apply(["put", f"d{number // 100_000}/n{number * 7919 % 100_003:06}", put, None])


def _milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return round((time.perf_counter() - began) * 1e3, 2)


def names() -> Figures:
    """The index of a million names alone, in this process: it is in the memory of every process that opens objects."""
    index = ObjectIndex()
    index.apply(["begin", 1, ""])
    before, cpu = memory(os.getpid())["rss"], time.process_time()
    for number in range(NAMES):
        _named(index, number)
    spent = time.process_time() - cpu
    figures: Figures = {
        "bytes_per_name": round((memory(os.getpid())["rss"] - before) / NAMES),
        "put_cpu_us": round(spent / NAMES * 1e6, 1),
        "first_page_ms": _milliseconds(lambda: index.listed("", "", 1000)),
        "middle_page_ms": _milliseconds(lambda: index.listed("d1/", "d1/n050000", 1000)),
        "rename_directory_ms": _milliseconds(lambda: index.apply(["rename", "d1", "renamed", None])),
        "remove_directory_ms": _milliseconds(lambda: index.apply(["remove", "renamed", True])),
    }
    cpu = time.process_time()
    lines = index.snapshot()
    figures["snapshot_stands_still_ms"] = round((time.process_time() - cpu) * 1e3, 1)
    data = b"".join(lines)
    figures["snapshot_cpu_s"] = round(time.process_time() - cpu, 1)
    figures["snapshot_bytes_per_name"] = round(len(data) / NAMES)
    state = ClassState(ObjectIndex)
    cpu = time.process_time()
    state.restore((data,))
    figures["restore_cpu_s"] = round(time.process_time() - cpu, 1)
    return figures


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
