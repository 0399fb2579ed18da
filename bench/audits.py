"""Duration of an audit of very many ledgers: their records are written into the store directly, without entries.

One in a thousand names the fourth bookie, which is gone when autorecovery starts. `seconds` is from the start of that
process, which is elected auditor first, to the moment when all of these are marked.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator

from bench.harness import Bench, cluster
from bench.healing import Figures, any_mark, copied, healer, looking
from bench.machine import Watch, memory
from bench.machines import helpers
from buckram.core.ledgers.metadata import closed, created
from buckram.core.ledgers.metadata_codec import serialise
from buckram.errors import NoSuchKey
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.underreplication import Underreplication
from buckram.metadata.tree.layout import Layout
from buckram.metadata.tree.store import TreeStore
from buckram.seams import MetadataStore
from buckram.types import Create, KeyOp

LEDGERS = {
    "sqlite": int(os.environ.get("BENCH_AUDIT_SQLITE", "1000000")),
    "zookeeper": int(os.environ.get("BENCH_AUDIT_ZOOKEEPER", "100000")),
}
_ONE_IN = 1000
_FIRST = 1
_BATCH = 500
_WITHIN_S = 600.0


def measure() -> Figures:
    figures: Figures = {}
    for metadata, ledgers in LEDGERS.items():
        figures |= {f"{name}_{metadata}": value for name, value in _audited(metadata, ledgers).items()}
    figures["foreign_cpu"] = max(figures.pop(f"foreign_cpu_{metadata}") for metadata in LEDGERS)
    return figures


def _audited(metadata: str, ledgers: int) -> Figures:
    with cluster(4, metadata=metadata) as bench:
        asyncio.run(_fill(bench.uri, ledgers))
        bench.bookies[3].kill()
        asyncio.run(_until_gone(bench, "bookie-4"))
        began = time.monotonic()
        with healer(bench.uri) as worker, Watch(bench.folder, [*bench.pids, worker.pid, *helpers()]) as watch:
            asyncio.run(_until_marked(bench.uri))
            seconds, peak = time.monotonic() - began, memory(worker.pid)["peak"]
        return {
            "ledgers": ledgers,
            "seconds": round(seconds, 1),
            "peak_mb": round(peak / 1e6, 1),
            "foreign_cpu": watch.foreign_share,
        }


def _records(ledgers: int) -> Iterator[tuple[int, bytes]]:
    usual, lost = (
        serialise(closed(created(3, 3, 2, [f"bookie-{n}" for n in members]), -1, 0))
        for members in ((1, 2, 3), (1, 2, 4))
    )
    return ((_FIRST + n, lost if n % _ONE_IN == 0 else usual) for n in range(ledgers))


async def _fill(uri: str, ledgers: int) -> None:
    if uri.startswith("sqlite://"):
        _fill_sqlite(uri.removeprefix("sqlite://"), ledgers)
        return
    async with looking(uri) as store:
        assert isinstance(store, TreeStore)
        batch: list[KeyOp] = []
        for ledger, record in _records(ledgers):
            batch.append(Create(store.layout.ledger(ledger), record))
            if len(batch) == _BATCH:
                await store.keys.multi(batch)
                batch = []
        if batch:
            await store.keys.multi(batch)


def _fill_sqlite(path: str, ledgers: int) -> None:
    layout = Layout()
    rows = ((layout.ledgers, layout.ledger_name(ledger), record) for ledger, record in _records(ledgers))
    database = sqlite3.connect(path)
    with database:
        database.executemany("INSERT INTO keys (parent, name, value) VALUES (?, ?, ?)", rows)
    database.close()


async def _until_gone(bench: Bench, bookie: str) -> None:
    limit = time.monotonic() + _WITHIN_S
    async with looking(bench.uri) as store:
        while (await store.bookies()).find(bookie) is not None:
            if time.monotonic() > limit:
                raise RuntimeError(f"{bookie} is still registered {_WITHIN_S:g} s after it was killed")
            await asyncio.sleep(0.1)


async def _until_marked(uri: str) -> None:
    """Wait until everything is marked: the auditor then wakes the workers."""
    limit = time.monotonic() + _WITHIN_S
    async with looking(uri) as store:
        while not await _said_so(store):
            if time.monotonic() > limit:
                raise RuntimeError(f"the audit is not done after {_WITHIN_S:g} s")
            await asyncio.sleep(0.05)
        if (
            not await any_mark(Underreplication(store.keys, store.root, ""))
            and not (await copied(HealingStatusStore(store)))[0]
        ):
            raise RuntimeError("the audit marked nothing")  # nor was anything made whole by now that it had marked


async def _said_so(store: MetadataStore) -> bool:
    try:
        await store.keys.get(f"{store.own}/healing/round")
    except NoSuchKey:
        return False
    return True
