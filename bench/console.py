"""Cost of observation: the console's overview of a cluster with many ledgers, and a scrape of metrics during adds."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

from bench.gateway import running
from bench.harness import Bench, cluster
from buckram import connect
from buckram.core.ledgers.metadata_codec import serialise
from buckram.metadata.uri import open_store
from buckram.types import Create, KeyOp

LEDGERS = int(os.environ.get("BENCH_CONSOLE_LEDGERS", "100000"))
LOOKS = 30
OVERVIEW = ("/v2/status", "/v2/history", "/v2/gateways")
"""Requests that `serve/gateway/console/overview.js` sends, all at once."""
RATE = 1000
"""Adds a second while metrics are scraped."""
SCRAPE_EVERY_S = 0.25
_BATCH = 500


async def fetch(port: int, path: str, host: str = "127.0.0.1") -> float:
    """Return milliseconds of one GET on a connection of its own, to its last byte. Raises RuntimeError for any status
    but 200."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read(-1)
    finally:
        writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{path}: {answer[:200]!r}")
    return (time.perf_counter() - began) * 1000


async def fill(uri: str, count: int) -> None:
    """Make `count` ledgers in the metadata, each like one that was written and closed."""
    async with connect(uri) as client:
        async with client.create(ensemble="3/3/2") as writer:
            await writer.append(b"x")
        record = serialise(await client.metadata(writer.ledger_id))
    store = await open_store(uri)
    try:
        first = await store.next_ledger_id()
        await store.raise_next_id(first + count)
        for begin in range(first, first + count, _BATCH):
            keys = [await store.ledgers.key(one) for one in range(begin, min(begin + _BATCH, first + count))]
            ops: list[KeyOp] = [Create(key, record) for key in keys]
            await store.keys.multi(ops)
    finally:
        await store.close()


async def overview(port: int) -> list[float]:
    """Return the milliseconds of all requests of the page, for each look."""
    found: list[float] = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        await asyncio.gather(*(fetch(port, path) for path in OVERVIEW))
        found.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.05)
    return sorted(found)


async def scraped(bench: Bench, seconds: float) -> dict[str, Any]:
    """Paced adds, half of the time with scrapes of every bookie: what a scrape takes, and what adds take meanwhile."""
    scrapes: list[float] = []
    calm: list[tuple[float, float]] = []
    windows: list[tuple[float, float]] = []
    ports = [int((bookie.ready.http or "").rpartition(":")[2]) for bookie in bench.bookies if bookie.ready is not None]
    async with connect(bench.uri) as client, client.create(ensemble="3/3/2") as writer:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds

        async def scrape() -> None:
            await asyncio.sleep(SCRAPE_EVERY_S)
            while loop.time() < end:
                began = loop.time()
                for port in ports:
                    scrapes.append(await fetch(port, "/metrics"))
                windows.append((began, loop.time()))
                await asyncio.sleep(SCRAPE_EVERY_S)

        async def add(due: float) -> None:
            await writer.append(b"x" * 100)
            calm.append((due, (loop.time() - due) * 1000))

        scraping = asyncio.ensure_future(scrape())
        adds, number, began = [], 0, loop.time()
        while loop.time() < end:
            due = began + number / RATE
            await asyncio.sleep(max(0.0, due - loop.time()))
            adds.append(asyncio.ensure_future(add(due)))
            number += 1
        await asyncio.gather(*adds, scraping)
    during = [took for due, took in calm if _within(due, windows)]
    others = [took for due, took in calm if not _within(due, windows)]
    return {
        "scrape_ms": round(statistics.median(scrapes), 2),
        "scrape_p99_ms": round(quantile(scrapes, 0.99), 2),
        "add_p50_ms": round(statistics.median(others), 2),
        "add_p50_scraped_ms": round(statistics.median(during), 2),
        "add_p99_ms": round(quantile(others, 0.99), 2),
        "add_p99_scraped_ms": round(quantile(during, 0.99), 2),
    }


def _within(moment: float, windows: Sequence[tuple[float, float]]) -> bool:
    return any(begin <= moment <= end for begin, end in windows)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is not exceeded by this share of the values."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def measure(seconds: float) -> dict[str, Any]:
    """Return the figures of the overview and of the scrape."""
    with cluster(environment={"BUCKRAM_BOOKIE_HTTP": "127.0.0.1:0"}) as bench:
        figures = asyncio.run(scraped(bench, seconds))
        asyncio.run(fill(bench.uri, LEDGERS))
        with running(bench) as (port, _):
            found = asyncio.run(overview(port))
    return {
        **figures,
        "overview_ledgers": LEDGERS,
        "overview_p50_ms": round(statistics.median(found), 1),
        "overview_p99_ms": round(quantile(found, 0.99), 1),
    }


__all__ = ["measure", "quantile"]
