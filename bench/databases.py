"""Performance of databases: transactions of one client and of 64, a follower's reads and lag, one of a gigabyte. 3/3/2.

Not here: beside rqlite and over HTTP (rqlite.py), a writer that idles and a leader that is killed (database_faults.py),
many that sleep (database_fleet.py).
"""

from __future__ import annotations

import asyncio
import os
import random
import string
import time
from typing import Any

from bench.harness import Bench, inside
from bench.rates import percentile, rate
from buckram import Client, Database, connect

Figures = dict[str, Any]
SECONDS = float(os.environ.get("BENCH_SECONDS", "15"))
LARGE_MB = int(os.environ.get("BENCH_DATABASE_MB", "1000"))
CLIENTS = 64
PACED_PER_S = 1000
CREATE = "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)"
INSERT = "INSERT INTO item (name) VALUES (?)"
_CHUNK_MB = 8


def text() -> str:
    """Return a hundred bytes that do not repeat."""
    return "".join(random.choices(string.ascii_letters + string.digits, k=100))


async def load(bench: Bench, client: Client) -> Figures:
    """Inserts into a database that this process leads, and reads of a follower beside it."""
    async with client.namespace().database("main") as db, connect(client.uri) as other:
        await db.lead()
        await db.execute(CREATE)
        figures = await _writing(bench, db)
        async with other.namespace().database("main", stand=False) as follower:
            figures |= await _reading(db, follower) | await _lagging(db, follower)
            began = time.perf_counter()
            await follower.lead(takeover=True)
            await follower.execute(INSERT, ("after",))
            figures["take_over_asked_s"] = round(time.perf_counter() - began, 3)
    return figures


async def _writing(bench: Bench, db: Database) -> Figures:
    async def insert(number: int) -> None:
        await db.execute(INSERT, (text(),))

    figures: Figures = {}
    await rate(CLIENTS, min(1.0, SECONDS), insert)
    for clients, suffix in ((1, "_alone"), (CLIENTS, "")):
        before, count = db.log_bytes, await _count(db)
        figures |= (await rate(clients, SECONDS / 3, insert, bench.pids)).figures("tx", suffix)
        figures[f"log_bytes_per_insert{suffix}"] = round((db.log_bytes - before) / (await _count(db) - count))
    return figures


async def _count(db: Database) -> int:
    return int((await db.query("SELECT count(*) FROM item")).rows[0][0])  # type: ignore[arg-type]


async def _reading(db: Database, follower: Database) -> Figures:
    """Measure reads of rows by key from a follower, by 64 tasks of one process; no bookie is involved."""
    last = await _count(db)
    await follower.query("SELECT 1", consistency="stale", after=db.applied)

    async def read(number: int) -> None:
        key = random.randrange(1, last)
        await follower.query("SELECT name FROM item WHERE id = ?", (key,), consistency="stale")

    found = await rate(CLIENTS, SECONDS / 3, read)
    return {"follower_reads_per_s": round(found.per_s), "follower_cpu_us_per_read": round(found.client_us, 1)}


async def _lagging(db: Database, follower: Database) -> Figures:
    """Measure the time from the acknowledgement of a transaction to a follower's answer that includes it, at
    PACED_PER_S."""
    lags: list[float] = []

    async def write(due: float) -> None:
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        await db.execute(INSERT, (text(),))
        done, offset = time.perf_counter(), db.applied
        await follower.query("SELECT 1", consistency="stale", after=offset)
        lags.append(time.perf_counter() - done)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(write(began + number / PACED_PER_S) for number in range(int(PACED_PER_S * SECONDS / 3))))
    return {
        "paced_tx_per_s": round(len(lags) / (time.perf_counter() - began)),
        "paced_cpu_us_per_tx": round((time.process_time() - cpu) / len(lags) * 1e6, 1),
        "lag_p50_ms": round(percentile(lags, 0.5) * 1e3, 2),
        "lag_p99_ms": round(percentile(lags, 0.99) * 1e3, 2),
    }


async def _large(bench: Bench, client: Client) -> Figures:
    """Measure the writing of a database of LARGE_MB, and the time until an empty follower has it."""
    async with client.namespace().database("large") as db:
        await db.lead()
        await db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, data BLOB)")
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(LARGE_MB // _CHUNK_MB):
            await db.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
                "INSERT INTO item (data) SELECT randomblob(10000) FROM n",
                (_CHUNK_MB * 100,),
            )
        figures: Figures = {"write_mb_per_s": round(LARGE_MB / (time.perf_counter() - began), 1)}
        figures["write_client_cpu_ms_per_mb"] = round((time.process_time() - cpu) / LARGE_MB * 1e3, 1)
        began = time.perf_counter()
        await db.snapshot()
        figures["snapshot_s"] = round(time.perf_counter() - began, 2)
        began, cpu = time.perf_counter(), time.process_time()
        async with connect(client.uri) as other, other.namespace().database("large", stand=False) as follower:
            found = await follower.query("SELECT count(*) FROM item", consistency="stale", after=db.applied)
            figures["follower_s"] = round(time.perf_counter() - began, 2)
            figures["follower_cpu_s"] = round(time.process_time() - cpu, 2)
        figures["rows"] = found.rows[0][0]
    return figures


def databases() -> Figures:
    return inside(load)


def large() -> Figures:
    return inside(_large)
