"""What security costs: metadata through a bookie beside the store itself, and adds through TLS beside clear text."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.harness import cluster, data_root, last_json
from bench.machine import cpu_seconds
from buckram.metadata.uri import open_store

KEYS = 300
READS = int(os.environ.get("BENCH_METADATA_READS", "3000"))
SECONDS = os.environ.get("BENCH_SECONDS", "15")


def metadata_service() -> dict[str, Any]:
    """Microseconds an operation, directly and through the bookie, by the clock and of CPU (of the client and the bookie
    together), and how many times the direct ones that is. Pairs, one after the other, so that both have the same
    machine."""
    with cluster(bookies=1) as bench:
        ready, pid = bench.bookies[0].ready, bench.bookies[0].pid
        assert ready is not None
        served = f"buckram://{ready.host}:{ready.port}/"
        rounds = [(asyncio.run(_load(bench.uri, pid)), asyncio.run(_load(served, pid))) for _ in range(3)]
    figures: dict[str, Any] = {}
    for name in rounds[0][0]:
        for place, what in enumerate(("", "_cpu")):
            direct, through = (statistics.median(pair[side][name][place] for pair in rounds) for side in (0, 1))
            figures |= {f"{name}{what}_us": round(direct, 1), f"{name}_served{what}_us": round(through, 1)}
            figures[f"{name}{what}_times"] = round(through / direct, 2) if direct else None
    return figures


async def _load(uri: str, pid: int) -> dict[str, tuple[float, float]]:
    store = await open_store(uri)
    keys, base = store.keys, f"/buckram/bench-{time.monotonic_ns()}"

    async def timed(count: int, operation: Callable[[int], Awaitable[object]], each: int = 1) -> tuple[float, float]:
        return await _timed(count, operation, pid, each)

    try:
        return {
            "create": await timed(KEYS, lambda n: keys.create(f"{base}/{n}", b"v" * 200)),
            "get": await timed(READS, lambda n: keys.get(f"{base}/{n % KEYS}")),
            "set": await timed(KEYS, lambda n: keys.set(f"{base}/{n}", b"w" * 200, 0)),
            "get_100_at_once": await timed(
                READS // 100, lambda n: asyncio.gather(*(keys.get(f"{base}/{one}") for one in range(100))), each=100
            ),
            "delete_100_at_once": await timed(
                KEYS // 100,
                lambda n: asyncio.gather(*(keys.delete(f"{base}/{one}", 1) for one in range(100 * n, 100 * n + 100))),
                each=100,
            ),
        }
    finally:
        await store.close()


async def _timed(
    count: int, operation: Callable[[int], Awaitable[object]], pid: int, each: int = 1
) -> tuple[float, float]:
    """Microseconds of each operation: by the clock, and of CPU of this process and the bookie."""
    began, spent = time.perf_counter(), time.process_time() + cpu_seconds(pid)
    for number in range(count):
        await operation(number)
    took, cpu = time.perf_counter() - began, time.process_time() + cpu_seconds(pid) - spent
    return took / count / each * 1e6, cpu / count / each * 1e6


def tls() -> dict[str, Any]:
    """Adds a second, and CPU of client and bookies an add. TCP on both sides: a Unix socket would need no TLS."""
    figures: dict[str, Any] = {}
    for name, options in (("clear", []), ("secure", ["--secure"])):
        with _up(options) as ready:
            client = ready["client"] or {}
            known = {"BUCKRAM_CA": client["ca"], "BUCKRAM_TOKEN": client["token"]} if client else {}
            pids = [bookie["pid"] for bookie in ready["bookies"]]
            before = sum(map(cpu_seconds, pids))
            command = [sys.executable, "-m", "buckram", "bench", "write", "--ledgers", "1", "--seconds", SECONDS]
            environment = {**_environment(), **known, "BUCKRAM_METADATA": ready["uri"]}
            written = last_json([*command, "--json"], environment)
            spent = sum(map(cpu_seconds, pids)) - before
        figures |= {
            f"{name}_adds_per_s": written["adds_per_s"],
            f"{name}_client_cpu_us_per_add": written["client_cpu_us_per_add"],
            f"{name}_bookie_cpu_us_per_add": round(spent / max(1, written["acked"]) / len(pids) * 1e6, 2),
        }
    return figures


def _environment() -> Mapping[str, str]:
    return {**os.environ, "BUCKRAM_SOCKETS": "tcp"}


@contextlib.contextmanager
def _up(options: list[str]) -> Iterator[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=data_root()))
    command = [sys.executable, "-m", "buckram", "up", "--bookies", "3", "--data", str(folder / "data")]
    command += ["--no-gateway", "--json"]
    child = subprocess.Popen(
        [*command, "--janitor", "never", "--no-autorecovery", *options], stdout=subprocess.PIPE, env=_environment()
    )
    try:
        assert child.stdout is not None
        yield json.loads(child.stdout.readline())
    finally:
        child.terminate()
        child.wait(60)
        shutil.rmtree(folder, ignore_errors=True)
