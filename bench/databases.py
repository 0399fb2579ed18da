"""What databases do: transactions of one client and of 64, a follower's reads and lag, a take-over. 3/3/2."""

from __future__ import annotations

import asyncio
import os
import random
import string
import time
from collections.abc import Callable, Coroutine
from typing import Any

from bench.streams import measure
from buckram import Client, Database, connect

Figures = dict[str, Any]
SECONDS = float(os.environ.get("BENCH_SECONDS", "15"))
LARGE_MB = int(os.environ.get("BENCH_DATABASE_MB", "1000"))
CLIENTS = 64
PACED_PER_S = 1000
_INSERT = "INSERT INTO item (name) VALUES (?)"
_CHUNK_MB = 8


def text() -> str:
    """A hundred bytes that do not repeat."""
    return "".join(random.choices(string.ascii_letters + string.digits, k=100))


async def rate(
    clients: int, seconds: float, call: Callable[[int], Coroutine[Any, Any, object]]
) -> tuple[float, float, float]:
    """Calls a second, the median in milliseconds, and the process's CPU in microseconds for each."""
    began, cpu, took = time.perf_counter(), time.process_time(), list[float]()

    async def one(number: int) -> None:
        while (now := time.perf_counter()) - began < seconds:
            await call(number)
            took.append(time.perf_counter() - now)

    await asyncio.gather(*map(one, range(clients)))
    spent = (time.process_time() - cpu) / len(took) * 1e6
    return len(took) / (time.perf_counter() - began), sorted(took)[len(took) // 2] * 1000, spent


async def load(client: Client) -> Figures:
    ns = client.namespace()
    figures: Figures = {}
    async with ns.database("main") as db, connect(client.uri) as other:
        await db.lead()
        await db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")

        async def insert(number: int) -> None:
            await db.execute(_INSERT, (text(),))

        await rate(CLIENTS, min(1.0, SECONDS), insert)
        bytes_before, count = db.log_bytes, await _count(db)
        alone, median, _ = await rate(1, SECONDS / 3, insert)
        figures["log_bytes_per_insert_alone"] = round((db.log_bytes - bytes_before) / (await _count(db) - count))
        figures |= {"tx_per_s_alone": round(alone), "tx_p50_ms_alone": round(median, 2)}
        bytes_before, count = db.log_bytes, await _count(db)
        many, median, spent = await rate(CLIENTS, SECONDS / 3, insert)
        figures |= {"tx_per_s": round(many), "tx_p50_ms": round(median, 2), "cpu_us_per_tx": round(spent, 1)}
        figures["log_bytes_per_insert"] = round((db.log_bytes - bytes_before) / (await _count(db) - count))
        async with other.namespace().database("main", stand=False) as follower:
            figures |= await _following(db, follower)
            began = time.perf_counter()
            await follower.lead(takeover=True)
            await follower.execute(_INSERT, ("after",))
            figures["take_over_s"] = round(time.perf_counter() - began, 3)
    return figures | await _large(client)


async def _count(db: Database) -> int:
    return int((await db.query("SELECT count(*) FROM item")).rows[0][0])  # type: ignore[arg-type]


async def _following(db: Database, follower: Database) -> Figures:
    last = await _count(db)
    await follower.query("SELECT 1", consistency="stale", after=db.applied)

    async def read(number: int) -> None:
        key = random.randrange(1, last)
        await follower.query("SELECT name FROM item WHERE id = ?", (key,), consistency="stale")

    reads, _, spent = await rate(CLIENTS, SECONDS / 3, read)
    lags: list[float] = []

    async def write(due: float) -> None:
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        await db.execute(_INSERT, (text(),))
        done, offset = time.perf_counter(), db.applied
        await follower.query("SELECT 1", consistency="stale", after=offset)
        lags.append(time.perf_counter() - done)

    began = time.perf_counter()
    await asyncio.gather(*(write(began + number / PACED_PER_S) for number in range(int(PACED_PER_S * SECONDS / 3))))
    return {
        "follower_reads_per_s": round(reads),
        "follower_cpu_us_per_read": round(spent, 1),
        "paced_tx_per_s": round(len(lags) / (time.perf_counter() - began)),
        "lag_p50_ms": round(sorted(lags)[len(lags) // 2] * 1000, 2),
        "lag_p99_ms": round(sorted(lags)[len(lags) * 99 // 100] * 1000, 2),
    }


async def _large(client: Client) -> Figures:
    """A database of LARGE_MB: how fast it is written, and how long a follower takes that has nothing."""
    ns = client.namespace()
    async with ns.database("large") as db:
        await db.lead()
        await db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, data BLOB)")
        began = time.perf_counter()
        for _ in range(LARGE_MB // _CHUNK_MB):
            await db.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
                "INSERT INTO item (data) SELECT randomblob(10000) FROM n",
                (_CHUNK_MB * 100,),
            )
        figures: Figures = {"large_mb_per_s": round(LARGE_MB / (time.perf_counter() - began), 1)}
        await db.snapshot()
        began = time.perf_counter()
        async with connect(client.uri) as other, other.namespace().database("large", stand=False) as follower:
            found = await follower.query("SELECT count(*) FROM item", consistency="stale", after=db.applied)
            figures["large_follower_s"] = round(time.perf_counter() - began, 2)
            figures["large_rows"] = found.rows[0][0]
    return figures


def databases() -> Figures:
    return measure(load)
