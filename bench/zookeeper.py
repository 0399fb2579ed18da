"""Cost of ZooKeeper as metadata store: creations, listings, and the start of a bookie, on one embedded server."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.harness import data_root, initialise
from bench.machines import bookie_place, zookeeper
from buckram import connect
from buckram.cluster import Client
from buckram.core.ledgers.metadata import created
from buckram.core.ledgers.metadata_codec import serialise
from buckram.launch.processes import BookieProcess, stop_all
from buckram.metadata.uri import open_store
from buckram.metadata.zookeeper.store import ZooKeeperStore
from buckram.types import Create, KeyOp

CREATES = int(os.environ.get("BENCH_ZK_CREATES", "5000"))
LISTED = int(os.environ.get("BENCH_ZK_LISTED", "100000"))
AT_ONCE = 300
_FIRST_LISTED = 1_000_000
_BATCH = 500


def measure() -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=data_root()))
    bookies: list[BookieProcess] = []
    try:
        with zookeeper(folder / "zookeeper") as server:
            uri = f"zk://{server}/ledgers"
            asyncio.run(initialise(uri))
            starts = []
            for number in range(1, 4):
                place = bookie_place(number)
                bookie = BookieProcess(
                    uri, folder / f"bookie-{number}", bookie_id=f"bookie-{number}",
                    host=place.host, launcher=place.launcher,
                )  # fmt: skip
                bookies.append(bookie)
                began = time.monotonic()
                bookie.start()
                bookie.wait_ready()
                starts.append(round(time.monotonic() - began, 2))
            figures = {"bookie_start_s": max(starts), **asyncio.run(_load(uri))}
            stop_all(bookies)
            return figures
    finally:
        stop_all(bookies)
        shutil.rmtree(folder, ignore_errors=True)


async def _load(uri: str) -> dict[str, Any]:
    async with connect(uri) as client:
        await _create(client, AT_ONCE)  # connections, folders
        began, cpu = time.monotonic(), time.process_time()
        await _create(client, CREATES)
        took, spent = time.monotonic() - began, time.process_time() - cpu
    store = await open_store(uri)
    assert isinstance(store, ZooKeeperStore)
    try:
        await _fill(store)
        again, listed, after = time.monotonic(), 0, -1
        while page := await store.list_ledgers(after=after):
            listed, after = listed + len(page), page[-1]
        listing = time.monotonic() - again
    finally:
        await store.close()
    return {
        "creates_per_s": round(CREATES / took),
        "client_cpu_us_per_create": round(spent / CREATES * 1e6),
        "listed_ledgers": listed,
        "listing_s": round(listing, 2),
    }


async def _create(client: Client, count: int) -> None:
    """Ledgers made and let go, AT_ONCE at the same time."""
    left = iter(range(count))

    async def maker() -> None:
        for _ in left:
            await client.create()

    await asyncio.gather(*(maker() for _ in range(AT_ONCE)))


async def _fill(store: ZooKeeperStore) -> None:
    record = serialise(created(3, 3, 2, ["bookie-1", "bookie-2", "bookie-3"]))
    keys = [store.layout.ledger(_FIRST_LISTED + number) for number in range(LISTED)]
    for start in range(0, LISTED, _BATCH):
        batch: list[KeyOp] = [Create(key, record) for key in keys[start : start + _BATCH]]
        await store.keys.multi(batch)
