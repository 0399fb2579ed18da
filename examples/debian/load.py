"""The producer: writes records to streams under an id and sequence numbers, so that what is sent twice is stored once.

First a burst at full speed, whose writers are then abandoned as if their process had died; then others take the streams
over, send the end of the burst again, and go on steadily.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from buckram import Namespace, StreamWriter, connect

NAMESPACE = "debian"
CHANGELOGS, PACKAGES = "changelogs", "packages"
STREAMS = {CHANGELOGS: 1, PACKAGES: 4}
"""The changelogs' stream is in order of event time, so it is one; packages have the time at which they are written."""
WARM_UP = f"{NAMESPACE}/warm-up"
"""A stream of one record, for Spark's first query."""
BATCH = 200
BATCHES_IN_FLIGHT = 8
SENT_AGAIN = 1000
SLICES, TICK_S = 40, 0.2
CLOSING = b"closing"
END_OF_TIME = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
"""The event time of each stream's last record: it closes all windows and is in one that never closes."""


@dataclass
class Share:
    """The records of one stream, in order; `sent` of them so far."""

    stream: str
    kind: str
    records: Sequence[bytes]
    sent: int = 0

    @property
    def producer(self) -> str:
        return f"make-run/{self.stream}"

    def times(self, first: int, count: int) -> list[int]:
        """Event times, microseconds."""
        if self.kind == PACKAGES:
            return [time.time_ns() // 1000] * count
        return [event_time(record) for record in self.records[first : first + count]]


@dataclass
class Written:
    """Where every acknowledged record went: (stream, offset, sha256). `burst_s`: seconds that the burst took."""

    shares: list[Share]
    places: list[tuple[str, int, str]] = field(default_factory=list)
    bytes: int = 0
    burst: int = 0
    burst_s: float = 0.0
    degraded: int = 0
    sent_again: int = 0
    stored_again: int = 0

    @property
    def records_per_s(self) -> int:
        return round(self.burst / self.burst_s) if self.burst_s else 0

    def streams(self, kind: str | None = None) -> list[str]:
        return [share.stream for share in self.shares if kind in (None, share.kind)]


def event_time(record: bytes) -> int:
    """The Date field of a changelog entry, microseconds."""
    at = record.index(b"\nDate: ") + 7
    return int(datetime.fromisoformat(record[at : at + 20].decode()).timestamp()) * 1_000_000


def shares(kinds: Mapping[str, Sequence[bytes]]) -> list[Share]:
    found: list[Share] = []
    for kind, records in kinds.items():
        count = STREAMS[kind]
        ordered = sorted(records, key=event_time) if kind == CHANGELOGS else records
        for number in range(count):
            if part := ordered[number::count]:
                found.append(Share(f"{NAMESPACE}/{kind}-{number}", kind, part))
    return found


async def burst(uri: str, written: Written, at_half: Callable[[], None], advance: Callable[[int], None]) -> None:
    """The first half of every stream at full speed; `at_half` is called once, in the middle. No stream is closed."""
    half = sum(len(share.records) for share in written.shares) / 4
    called = False

    def acknowledged(count: int) -> None:
        nonlocal called
        advance(count)
        if not called and len(written.places) >= half:
            called = True
            at_half()

    async with connect(uri) as client:
        await client.namespaces.create(NAMESPACE, ensemble="3/3/2")
        ns = client.namespace(NAMESPACE)
        async with ns.writer(WARM_UP) as writer:
            await writer.append(b"")
        writers = [await ns.writer(share.stream, name="make run") for share in written.shares]
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for writer, share in zip(writers, written.shares, strict=True):
                group.create_task(_fill(writer, share, len(share.records) // 2, written, acknowledged))
        written.burst, written.burst_s = len(written.places), time.perf_counter() - began
        written.degraded = sum(bool(writer.degraded) for writer in writers)
        for writer in writers:
            await writer.abandon()  # as if this process had died here


async def _fill(
    writer: StreamWriter, share: Share, stop: int, written: Written, acknowledged: Callable[[int], None]
) -> None:
    """A few batches are always on their way; each is written down when it is acknowledged."""
    starts = iter(range(share.sent, stop, BATCH))

    async def chain() -> None:
        for start in starts:
            count = min(BATCH, stop - start)
            await _send(writer, share, start, count, written)
            acknowledged(count)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(BATCHES_IN_FLIGHT, -(-stop // BATCH))):
            group.create_task(chain())
    share.sent = stop


async def _send(writer: StreamWriter, share: Share, start: int, count: int, written: Written) -> int:
    """How many were stored by this; they have their place then."""
    if not count:
        return 0
    batch = share.records[start : start + count]
    offsets = await writer.append_many(
        batch, timestamps=share.times(start, count), producer=share.producer, sequence=start
    )
    fresh = batch[count - len(offsets) :]
    for offset, record in zip(offsets, fresh, strict=True):
        written.places.append((writer.stream, offset, hashlib.sha256(record).hexdigest()))
        written.bytes += len(record)
    return len(offsets)


async def _send_to(
    writer: StreamWriter, share: Share, stop: int, written: Written, advance: Callable[[int], None]
) -> None:
    """The next records, up to `stop`."""
    while share.sent < stop:
        count = min(BATCH, stop - share.sent)
        await _send(writer, share, share.sent, count, written)
        share.sent += count
        advance(count)


async def steady(uri: str, written: Written, advance: Callable[[int], None], before_end: Awaitable[None]) -> float:
    """Take the streams over, send the end of the burst again, and the rest little by little; the last third comes after
    `before_end`. Then each stream gets its closing record and is sealed. How many seconds the take-over took."""
    began = time.perf_counter()
    async with connect(uri) as client:
        ns = client.namespace(NAMESPACE)
        opened = [ns.writer(share.stream, name="make run again", takeover=True) for share in written.shares]
        writers = [await writer for writer in opened]
        took = time.perf_counter() - began
        for writer, share in zip(writers, written.shares, strict=True):
            first = max(0, share.sent - SENT_AGAIN)
            written.sent_again += share.sent - first
            written.stored_again += await _send(writer, share, first, share.sent - first, written)
        until = asyncio.ensure_future(before_end)
        while not until.done():
            # Always less, so that something is left however long it takes.
            for writer, share in zip(writers, written.shares, strict=True):
                free = len(share.records) * 7 // 10 - share.sent
                await _send_to(writer, share, share.sent + max(free // SLICES, min(free, 1)), written, advance)
            await asyncio.wait([until], timeout=TICK_S)
        until.result()
        for left in reversed(range(SLICES)):
            for writer, share in zip(writers, written.shares, strict=True):
                rest = (len(share.records) - share.sent) * left // (left + 1)
                await _send_to(writer, share, len(share.records) - rest, written, advance)
            await asyncio.sleep(TICK_S)
        for writer in writers:
            await writer.append(b"", key=CLOSING, timestamp=END_OF_TIME)
            await writer.close()
    return took


async def segments(ns: Namespace, streams: Sequence[str]) -> int:
    """How many ledgers these streams are made of."""
    return sum([1 for stream in streams async for _ in ns.segments(stream)])


def save_expected(places: Sequence[tuple[str, int, str]], path: Path) -> None:
    """What Spark compares with: a Parquet file of stream, offset, sha256."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    streams, offsets, digests = zip(*places, strict=True)
    columns = {"stream": pa.array(streams, pa.string()), "offset": pa.array(offsets, pa.int64()), "sha256": digests}
    pq.write_table(pa.table(columns), path)
