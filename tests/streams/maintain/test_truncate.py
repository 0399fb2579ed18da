"""Retention: exactly what a policy names is truncated, and space is freed by whole segments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from buckram.cluster import Client, connect
from buckram.errors import OffsetTruncated
from buckram.namespace import Namespace
from buckram.runtime.production import production_runtime
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.janitor_report import JanitorReport
from buckram.testing import Cluster, cluster

SECOND = 1_000_000
START = 1_700_000_000 * SECOND


class Clock:
    """A clock that goes on only when a test says so: time passes, and nobody set the clock."""

    def __init__(self) -> None:
        self.now = START

    def wall_us(self) -> int:
        return self.now

    def up_us(self) -> int:
        return self.now - START

    def boot(self) -> str:
        return ""

    def pass_s(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def three_bookies(clock: Clock) -> AsyncIterator[Cluster]:
    async with cluster(bookies=3, clock=clock) as running:
        yield running


@pytest.fixture
async def client(three_bookies: Cluster, clock: Clock) -> AsyncIterator[Client]:
    runtime = replace(production_runtime(), clock=clock)
    async with connect(three_bookies.uri, runtime=runtime) as connected:
        yield connected


async def clean(client: Client, **settings: Any) -> JanitorReport:
    report = await Janitor(client, JanitorSettings(grace_s=0, **settings)).clean()
    assert report.problems == []
    return report


async def segments(ns: Namespace, stream: str, clock: Clock, count: int, records: int = 10) -> None:
    """Write `count` sealed segments, a minute apart from each other."""
    for _ in range(count):
        async with ns.writer(stream) as writer:
            await writer.append_many([bytes(100)] * records)
        clock.pass_s(60)


async def ledgers(client: Client) -> int:
    return len([ledger async for ledger in client.list()])


async def visible(ns: Namespace, stream: str, end: int) -> None:
    """Wait until other clients can read up to `end`, a moment after the acknowledgement."""
    async with asyncio.timeout(10):
        async for record in ns.read(stream, start=end - 1, follow=True):
            assert record.offset == end - 1
            return


async def bounds(ns: Namespace, stream: str) -> tuple[int, int, int]:
    info = await ns.info(stream)
    return info.earliest, info.end, len([row async for row in ns.segments(stream)])


async def test_nothing_is_deleted_by_default(client: Client, ns: Namespace, clock: Clock) -> None:
    await segments(ns, "s", clock, 4)
    await ns.move_cursor("s", "done", 40)
    clock.pass_s(1000 * 366 * 86_400)
    report = await clean(client)
    assert (report.streams, report.truncated_records, report.deleted_segments, report.orphans) == (1, 0, 0, 0)
    assert await bounds(ns, "s") == (0, 40, 4)
    assert len([record async for record in ns.read("s")]) == 40


async def test_age_is_exact_to_the_record(client: Client, ns: Namespace, clock: Clock) -> None:
    await ns.create("s", retention_s=600)
    await segments(ns, "s", clock, 3)  # They were appended at 0, 60 and 120 s; it is 180 s now.
    async with ns.writer("s") as writer:
        for _ in range(5):
            await writer.append(b"x")
            clock.pass_s(10)  # Records are appended at 180, 190, 200, 210 and 220 s; afterwards it is 230 s.
        await visible(ns, "s", 35)
        before = await ledgers(client)
        await clean(client)
        assert (await bounds(ns, "s"))[0] == 0
        clock.pass_s(600 - 230 + 121)  # Now the third segment's records are 601 s old.
        report = await clean(client)
        assert (report.truncated_records, report.deleted_segments) == (30, 3)
        assert await bounds(ns, "s") == (30, 35, 1)
        assert await ledgers(client) == before - 3
        clock.pass_s(80)  # The cut-off at 201 s is inside the open segment.
        assert (await clean(client)).truncated_records == 3
        assert [r.offset async for r in ns.read("s")] == [33, 34]
        with pytest.raises(OffsetTruncated):
            await ns.get("s", 32)
        await writer.append(b"goes on")
    assert [r.offset async for r in ns.read("s")] == [33, 34, 35]


async def test_a_record_of_exactly_the_retention_age_stays(client: Client, ns: Namespace, clock: Clock) -> None:
    async with ns.writer("s") as writer:
        await writer.append(b"x")
    await ns.set_policy("s", retention_s=100)
    clock.pass_s(100)
    assert (await clean(client)).truncated_records == 0
    clock.now += 1
    assert (await clean(client)).truncated_records == 1
    assert await bounds(ns, "s") == (1, 1, 0)


async def test_the_open_segment_rolls_by_age(ns: Namespace) -> None:
    await ns.create("s", retention_s=1)
    async with ns.writer("s") as writer:
        await writer.append(b"first")
        async with asyncio.timeout(20):
            while len(rows := [row async for row in ns.segments("s")]) < 2 and not rows[0].sealed:
                await writer.append(b"more")
        assert rows[0].sealed


async def test_the_segment_of_a_dead_writer_is_sealed_when_it_has_expired(
    client: Client, ns: Namespace, clock: Clock
) -> None:
    await ns.create("s", retention_s=100)
    writer = await ns.writer("s")
    await writer.append_many([b"x"] * 7)
    await visible(ns, "s", 7)
    clock.pass_s(200)
    report = await clean(client)  # The writer is alive: the stream is truncated, but its segment is not sealed.
    assert (report.truncated_records, report.sealed_segments) == (7, 0)
    await writer.append(b"alive")
    await visible(ns, "s", 8)
    await writer.abandon()
    assert (await clean(client)).sealed_segments == 0  # The last record has not expired.
    clock.pass_s(200)
    report = await clean(client)
    assert (report.truncated_records, report.sealed_segments, report.deleted_segments) == (1, 1, 1)
    assert await bounds(ns, "s") == (8, 8, 0)
    assert await ledgers(client) == 0
    async with ns.writer("s") as writer:
        assert await writer.append(b"next") == 8


async def test_size_goes_by_whole_segments(client: Client, ns: Namespace, clock: Clock) -> None:
    await segments(ns, "s", clock, 6)
    sizes = [row.summary.bytes async for row in ns.segments("s") if row.summary]
    await ns.set_policy("s", retention_bytes=sum(sizes[-2:]) + 1)
    assert (await clean(client)).deleted_segments == 3  # Two segments have fewer bytes, so a third one stays.
    assert await bounds(ns, "s") == (30, 60, 3)
    await ns.set_policy("s", retention_bytes=0)
    async with ns.writer("s") as writer:
        await writer.append(b"in the open segment")
        await visible(ns, "s", 61)
        await clean(client)
        assert await bounds(ns, "s") == (60, 61, 1)


async def test_cursors_hold_retention_back(client: Client, ns: Namespace, clock: Clock) -> None:
    await ns.create("s", retention_s=1, retention_cursors=True)
    await segments(ns, "s", clock, 3)
    for cursor, offset in (("fast", 30), ("slow", 12)):
        await ns.move_cursor("s", cursor, offset)
    assert (await clean(client)).truncated_records == 12
    assert await bounds(ns, "s") == (12, 30, 2)
    await ns.delete_cursor("s", "slow")
    await clean(client)
    assert await bounds(ns, "s") == (30, 30, 0)


async def test_records_that_every_cursor_has_passed_are_truncated(client: Client, ns: Namespace, clock: Clock) -> None:
    await segments(ns, "s", clock, 3)
    await ns.set_policy("s", retention_consumed=True)
    await clean(client)
    assert (await bounds(ns, "s"))[0] == 0  # Without a cursor nothing counts as read.
    await ns.move_cursor("s", "a", 25)
    await ns.move_cursor("s", "b", 15)
    await clean(client)
    assert await bounds(ns, "s") == (15, 30, 2)
    assert await ns.truncate("s", before_cursors=True) == 15
    await ns.move_cursor("s", "b", 29)
    assert await ns.truncate("s", before_cursors=True) == 25


async def test_a_stream_s_policy_overrides_its_namespace_s(client: Client, ns: Namespace, clock: Clock) -> None:
    await client.namespaces.set("shop", retention_s=50.0)
    await ns.create("kept", retention_s=None)
    for stream in ("kept", "dropped"):
        await segments(ns, stream, clock, 1)
    clock.pass_s(60)
    await clean(client)
    assert [(await bounds(ns, stream))[0] for stream in ("kept", "dropped")] == [0, 10]


async def test_the_segment_with_the_producers_table_stays(client: Client, ns: Namespace, clock: Clock) -> None:
    """Its records are truncated, but the table must still tell a retry of an old record from a new one."""
    async with ns.writer("s") as writer:
        await writer.append(b"once", producer="p", sequence=0)
    await ns.set_policy("s", retention_bytes=0)
    await clean(client)
    assert (await bounds(ns, "s"))[0] == 1
    async with ns.writer("s") as writer:
        assert await writer.append(b"once", producer="p", sequence=0) == 0
        assert await writer.append(b"new", producer="p", sequence=1) == 1
