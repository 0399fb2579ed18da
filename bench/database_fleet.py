"""A database for each of many tenants in one server, nearly all of which sleep: memory, ledgers, the first query."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Any

from bench.databases import CREATE, INSERT, text
from bench.harness import Bench, inside
from bench.machine import cpu_seconds, memory
from bench.rates import percentile
from bench.served import Connection, Served, connections, served
from buckram import Client

Figures = dict[str, Any]
DATABASES = int(os.environ.get("BENCH_DATABASES", "10000"))
USED = int(os.environ.get("BENCH_DATABASES_USED", "1000"))
"""Number of databases that have rows and were used before they sleep."""
FIRST_QUERIES = 100
_SPACE = "tenants"
_AT_ONCE = 16
_IDLE_S = 2.0
_SLEEPING_WITHIN_S = 120.0


async def _fleet(bench: Bench, client: Client) -> Figures:
    """Make all databases and use some; when all sleep, request single ones."""
    await client.namespaces.create(_SPACE)
    ns = client.namespace(_SPACE)
    began = time.perf_counter()
    for first in range(0, DATABASES, _AT_ONCE):
        some = range(first, min(first + _AT_ONCE, DATABASES))
        await asyncio.gather(*(ns.create_database(_name(number)) for number in some))
    figures: Figures = {"databases": DATABASES, "created_per_s": round(DATABASES / (time.perf_counter() - began))}
    idle = ("--idle", f"{_IDLE_S}s")
    with served(bench, f"{_SPACE}/", *idle) as server, connections(server.port, _AT_ONCE) as senders:
        await senders[0].post("/health")
        figures["server_mb_at_first"] = _megabytes(server)
        figures |= await _use(server, senders)
        figures |= await _sleep(client, server, senders[0])
        figures |= await _wake(server, senders[0])
    return figures


def _name(number: int) -> str:
    return f"t{number:05}"


def _megabytes(server: Served) -> float:
    return round(memory(server.pid)["rss"] / 1e6, 1)


async def _use(server: Served, senders: list[Connection]) -> Figures:
    """Make a table and a row in each of the first ones."""
    began, cpu = time.perf_counter(), cpu_seconds(server.pid)

    async def use(sender: Connection, numbers: range) -> None:
        for number in numbers:
            await sender.execute(f"{_SPACE}/{_name(number)}", CREATE)
            await sender.execute(f"{_SPACE}/{_name(number)}", INSERT, text())

    await asyncio.gather(*(use(sender, range(at, USED, len(senders))) for at, sender in enumerate(senders)))
    return {
        "used": USED,
        "used_per_s": round(USED / (time.perf_counter() - began), 1),
        "server_cpu_ms_each": round((cpu_seconds(server.pid) - cpu) / max(USED, 1) * 1e3, 1),
        "server_peak_mb": round(memory(server.pid)["peak"] / 1e6, 1),
    }


async def _sleep(client: Client, server: Served, sender: Connection) -> Figures:
    limit = time.monotonic() + _SLEEPING_WITHIN_S
    while (await sender.post("/"))["databases"]:
        if time.monotonic() > limit:
            raise RuntimeError(f"databases are open {_SLEEPING_WITHIN_S:g} s after they were used last")
        await asyncio.sleep(0.1)
    unclosed = 0
    async for ledger in client.list():
        unclosed += not (await client.metadata(ledger)).closed
    return {"sleeping_server_mb": _megabytes(server), "open_ledgers": unclosed}


async def _wake(server: Served, sender: Connection) -> Figures:
    """Measure the first query on some sleeping databases, one after the other."""
    took: list[float] = []
    cpu = cpu_seconds(server.pid)
    for number in random.sample(range(USED), min(FIRST_QUERIES, USED)):
        began = time.perf_counter()
        result = await sender.execute(f"{_SPACE}/{_name(number)}", "SELECT count(*) FROM item")
        took.append(time.perf_counter() - began)
        if result["rows"][0][0]["value"] != "1":
            raise RuntimeError(f"database {_name(number)} has lost its row: {result}")
    return {
        "first_query_p50_ms": round(percentile(took, 0.5) * 1e3, 1),
        "first_query_p99_ms": round(percentile(took, 0.99) * 1e3, 1),
        "first_query_server_cpu_ms": round((cpu_seconds(server.pid) - cpu) / len(took) * 1e3, 1),
    }


def fleet() -> Figures:
    return inside(_fleet)
