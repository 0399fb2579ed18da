"""Writes the records to ledgers at full speed while one bookie is killed, then recovers and closes every ledger."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from buckram import Client, Writer, connect

LEDGERS_PER_KIND = 4
BATCH = 200
BATCHES_IN_FLIGHT = 8


@dataclass
class Written:
    """Where every acknowledged record went: kind -> ledgers, and (ledger, entry, sha256) of each record."""

    ledgers: dict[str, list[int]] = field(default_factory=dict)
    places: list[tuple[int, int, str]] = field(default_factory=list)
    bytes: int = 0
    seconds: float = 0.0
    degraded: int = 0
    ensemble_changes: int = 0

    @property
    def records_per_s(self) -> int:
        return round(len(self.places) / self.seconds) if self.seconds else 0


async def write(
    uri: str, kinds: Mapping[str, Sequence[bytes]], at_half: Callable[[], None], advance: Callable[[int], None]
) -> Written:
    """Append all records; `at_half` is called once, when half of them are acknowledged. The ledgers stay open."""
    found = Written()
    half = sum(map(len, kinds.values())) / 2
    called = False

    def acknowledged(ledger: int, ids: range, batch: Sequence[bytes]) -> None:
        nonlocal called
        for entry, record in zip(ids, batch, strict=True):
            found.places.append((ledger, entry, hashlib.sha256(record).hexdigest()))
            found.bytes += len(record)
        advance(len(batch))
        if not called and len(found.places) >= half:
            called = True
            at_half()

    async with connect(uri) as client:
        began = time.perf_counter()
        writers: list[Writer] = []
        async with asyncio.TaskGroup() as group:
            for kind, records in kinds.items():
                shares = [records[n::LEDGERS_PER_KIND] for n in range(LEDGERS_PER_KIND)]
                for share in filter(None, shares):
                    writer = await client.create(ensemble="3/3/2", custom_metadata={"kind": kind})
                    writers.append(writer)
                    found.ledgers.setdefault(kind, []).append(writer.ledger_id)
                    group.create_task(_fill(writer, share, acknowledged))
        found.seconds = time.perf_counter() - began
        found.degraded = sum(writer.degraded for writer in writers)
        found.ensemble_changes = sum(writer.ensemble_changes for writer in writers)
        for writer in writers:
            await writer.abandon()  # as if this process had died here
    return found


async def _fill(
    writer: Writer, records: Sequence[bytes], acknowledged: Callable[[int, range, Sequence[bytes]], None]
) -> None:
    """A few batches are always on their way; each is written down when it is acknowledged."""
    starts = iter(range(0, len(records), BATCH))

    async def chain() -> None:
        for start in starts:
            batch = records[start : start + BATCH]
            acknowledged(writer.ledger_id, await writer.append_many(batch), batch)

    async with asyncio.TaskGroup() as group:
        for _ in range(BATCHES_IN_FLIGHT):
            group.create_task(chain())


async def recover(uri: str, ledgers: Sequence[int]) -> float:
    """Recover and close every ledger, as another process would; how many seconds it took."""
    began = time.perf_counter()
    async with connect(uri) as client, asyncio.TaskGroup() as group:
        for ledger in ledgers:
            group.create_task(_recover(client, ledger))
    return time.perf_counter() - began


async def _recover(client: Client, ledger: int) -> None:
    async with client.recover(ledger) as reader:
        assert reader.metadata.closed


def save_expected(places: Sequence[tuple[int, int, str]], path: Path) -> None:
    """What Spark compares with: a Parquet file of ledger, entry, sha256."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ledgers, entries, digests = zip(*places, strict=True)
    columns = {"ledger": pa.array(ledgers, pa.int64()), "entry": pa.array(entries, pa.int64()), "sha256": digests}
    pq.write_table(pa.table(columns), path)
