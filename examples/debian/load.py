"""Writes the records to streams at full speed while one bookie is killed, then takes every stream over and seals it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from buckram import Namespace, StreamWriter, connect

NAMESPACE = "debian"
STREAMS_PER_KIND = 4
WARM_UP = f"{NAMESPACE}/warm-up"
"""A stream of one record, for Spark's first query."""
BATCH = 200
BATCHES_IN_FLIGHT = 8


@dataclass
class Written:
    """Where every acknowledged record went: kind -> streams, and (stream, offset, sha256) of each record."""

    streams: dict[str, list[str]] = field(default_factory=dict)
    places: list[tuple[str, int, str]] = field(default_factory=list)
    segments: int = 0
    bytes: int = 0
    seconds: float = 0.0
    degraded: int = 0

    @property
    def records_per_s(self) -> int:
        return round(len(self.places) / self.seconds) if self.seconds else 0


async def write(
    uri: str, kinds: Mapping[str, Sequence[bytes]], at_half: Callable[[], None], advance: Callable[[int], None]
) -> Written:
    """Append all records; `at_half` is called once, when half of them are acknowledged. No stream is closed."""
    found = Written()
    half = sum(map(len, kinds.values())) / 2
    called = False

    def acknowledged(stream: str, offsets: range, batch: Sequence[bytes]) -> None:
        nonlocal called
        for offset, record in zip(offsets, batch, strict=True):
            found.places.append((stream, offset, hashlib.sha256(record).hexdigest()))
            found.bytes += len(record)
        advance(len(batch))
        if not called and len(found.places) >= half:
            called = True
            at_half()

    async with connect(uri) as client:
        await client.namespaces.create(NAMESPACE, ensemble="3/3/2")
        ns = client.namespace(NAMESPACE)
        work: list[tuple[StreamWriter, Sequence[bytes]]] = []
        for kind, records in kinds.items():
            shares = [records[n::STREAMS_PER_KIND] for n in range(STREAMS_PER_KIND)]
            for number, share in enumerate(filter(None, shares)):
                work.append((await ns.writer(f"{kind}-{number}", name="make run"), share))
                found.streams.setdefault(kind, []).append(work[-1][0].stream)
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for writer, share in work:
                group.create_task(_fill(writer, share, acknowledged))
        found.seconds = time.perf_counter() - began
        found.degraded = sum(bool(writer.degraded) for writer, _ in work)
        for writer, _ in work:
            await writer.abandon()  # as if this process had died here
    return found


async def _fill(
    writer: StreamWriter, records: Sequence[bytes], acknowledged: Callable[[str, range, Sequence[bytes]], None]
) -> None:
    """A few batches are always on their way; each is written down when it is acknowledged."""
    starts = iter(range(0, len(records), BATCH))

    async def chain() -> None:
        for start in starts:
            batch = records[start : start + BATCH]
            acknowledged(writer.stream, await writer.append_many(batch), batch)

    async with asyncio.TaskGroup() as group:
        for _ in range(BATCHES_IN_FLIGHT):
            group.create_task(chain())


async def take_over(uri: str, written: Written) -> float:
    """Fence the writers that died, seal what they left, and list the segments; how many seconds it took."""
    began = time.perf_counter()
    async with connect(uri) as client, asyncio.TaskGroup() as group:
        ns = client.namespace(NAMESPACE)
        group.create_task(_warm_up(ns))
        for streams in written.streams.values():
            for stream in streams:
                group.create_task(_take_over(ns, stream, written))
    return time.perf_counter() - began


async def _take_over(ns: Namespace, stream: str, written: Written) -> None:
    async with ns.writer(stream, name="recovery", takeover=True):
        pass
    async for segment in ns.segments(stream):
        assert segment.sealed
        written.segments += 1


async def _warm_up(ns: Namespace) -> None:
    async with ns.writer(WARM_UP) as writer:
        await writer.append(b"")


def save_expected(places: Sequence[tuple[str, int, str]], path: Path) -> None:
    """What Spark compares with: a Parquet file of stream, offset, sha256."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    streams, offsets, digests = zip(*places, strict=True)
    columns = {"stream": pa.array(streams, pa.string()), "offset": pa.array(offsets, pa.int64()), "sha256": digests}
    pq.write_table(pa.table(columns), path)
