"""Performance of objects: puts of 1 KB by 64 tasks, one large object put and got, 3/3/2, and a million names.

The disk bounds the large put, so plain copies of as many bytes are made right after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from bench.harness import Bench, inside
from bench.healing import plain_copy
from bench.machine import cpu_seconds, memory
from bench.rates import rate
from buckram import Client
from buckram.core.objects.index import ObjectIndex
from buckram.state.machine.machine import ClassState

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


async def load(bench: Bench, client: Client) -> Figures:
    """Small puts and gets a second, and megabytes a second of one large object, with the CPU of each megabyte."""
    async with client.objects() as objects:
        done = [0] * TASKS

        async def put(task: int) -> None:
            await objects.put(f"small/{task}/{done[task]}", PIECE[:1000])
            done[task] += 1

        async def get(task: int) -> None:
            await objects.get(f"small/{task}/{random.randrange(done[task])}")

        figures = (await rate(TASKS, SECONDS, put, bench.pids)).figures("put")
        figures |= (await rate(TASKS, SECONDS / 3, get, bench.pids)).figures("get")
        with _spent("put_mb", LARGE_MB, bench, figures):
            await objects.put("large", _pieces())
        figures["plain_copies_mb_per_s"] = round(await asyncio.to_thread(_plain_copies, bench), 1)
        with _spent("get_mb", LARGE_MB, bench, figures):
            size = sum([len(piece) async for piece in objects.read("large")])
        if size != LARGE_MB * len(PIECE):
            raise RuntimeError(f"{size} bytes were read, and {LARGE_MB} MB were put")
    return figures


def _plain_copies(bench: Bench) -> float:
    """MB/s of an object whose three copies are plain ones, one after the other and synced each 4 MB, on this disk."""
    size = LARGE_MB * len(PIECE)
    rates = [plain_copy(bookie.directory, bench.folder, size) for bookie in bench.bookies]
    return 1e-6 / sum(1 / each for each in rates)


async def _pieces() -> AsyncIterator[bytes]:
    for _ in range(LARGE_MB):
        yield PIECE


@contextlib.contextmanager
def _spent(what: str, count: int, bench: Bench, figures: Figures) -> Iterator[None]:
    """Measure the block: operations per second, and the milliseconds of CPU of each."""
    began, cpu, servers = time.perf_counter(), time.process_time(), sum(map(cpu_seconds, bench.pids))
    yield
    seconds, mine = time.perf_counter() - began, time.process_time() - cpu
    figures[f"{what}_per_s"] = round(count / seconds, 1)
    figures[f"{what}_client_cpu_ms"] = round(mine / count * 1e3, 2)
    figures[f"{what}_servers_cpu_ms"] = round((sum(map(cpu_seconds, bench.pids)) - servers) / count * 1e3, 2)


def objects() -> Figures:
    return inside(load)
