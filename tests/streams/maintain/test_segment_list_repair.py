"""Streams after a restore of metadata whose lists name segments that were deleted since the backup."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.replication.restoring import backed_up, opened_store, restored
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.core.ledgers.deletions import NONE_DELETED, decode_file
from buckram.core.streams.names import StreamId, StreamName
from buckram.errors import OffsetTruncated, OutOfOrderSequence
from buckram.metadata.maintain.checkup import examine
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.segment_list_repair import LackingRecords, begin_after_deleted
from buckram.streams.shared.ledgers import drop_ledger
from buckram.streams.shared.metadata import StreamStore
from buckram.testing import Cluster, cluster, in_process

pytestmark = pytest.mark.share(2)
NAME = StreamName("default", "orders")
RECORDS = 5
"""Of each of the four segments."""
Deletion = Callable[[Client], Awaitable[None]]


@pytest.fixture
async def three_bookies(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """Bookies that look soon at what was deleted, and whether the store went back."""
    monkeypatch.setattr("buckram.bookie.trust.witness.LOOK_S", 0.1)
    node = in_process._node

    def quick(root: Path, number: int, uri: str) -> in_process._Node:
        made = node(root, number, uri)
        made.config = replace(made.config, deletions_interval_s=0.1)
        return made

    monkeypatch.setattr(in_process, "_node", quick)
    async with cluster(bookies=3) as running:
        yield running


def remembers(home: Path, ledgers: list[int]) -> bool:
    file = home / "DELETED.000001"
    if not file.exists():
        return False
    _, buckets = decode_file(file.name, file.read_bytes())
    return all(one in buckets.get(0, NONE_DELETED) for one in ledgers)


async def rows(client: Client) -> list[int]:
    """The ledgers of the stream's segments."""
    streams = StreamStore(client.services.store)
    return [row.ledger async for row in streams.segments((await streams.read(NAME)).head)]


async def deleted_since_a_backup(c: Cluster, deletion: Deletion, *, is_open: bool = False) -> list[LackingRecords]:
    """Write a stream, back the metadata up, delete, restore, and accept as the command does.

    `is_open`: the last segment had a writer then.
    """
    async with c.client() as client:
        ns = client.namespace()
        for number in range(4):
            writer = await ns.writer("orders")
            await writer.append_many([b"x"] * RECORDS, producer="p", sequence=RECORDS * number)
            if number < 3 or not is_open:
                await writer.close()
        before = await rows(client)
        made = await backed_up(c)
        await writer.close()
        await deletion(client)
        left = [one async for one in client.list()]
        gone = [one for one in before if one not in left]

        async def followed() -> bool:
            return all(remembers(node.directory, gone) for node in c._nodes)

        await eventually(followed, "bookies do not follow the deletions")
    await restored(c, made)
    async with c.client() as client:
        assert not set(gone) & {one async for one in client.list()}, "they were not deleted again"
        streams = StreamStore(client.services.store)
        lacking = await begin_after_deleted(streams)
        again = await begin_after_deleted(streams)
        assert again == [one for one in lacking if not one.dropped], "what is done is not done again"
        return lacking


async def offsets(client: Client, start: int | str = "earliest", *, skip: bool = False) -> list[int]:
    async with asyncio.timeout(30):
        return [
            record.offset
            async for record in client.namespace().read("orders", start=start, on_truncated="skip" if skip else "error")
        ]


async def goes_on(c: Cluster, client: Client, end: int, producer: str | None = "p") -> None:
    """The stream is written and maintained as others, and nobody has anything to say."""
    async with client.namespace().writer("orders") as writer:
        sequence = None if producer is None else end
        assert await writer.append(b"y", producer=producer, sequence=sequence) == end
    for _ in range(2):
        report = await Janitor(client, JanitorSettings(grace_s=0)).clean()
        assert report.problems == []
    async with opened_store(c) as store:
        assert (await examine(store)).problems == []


async def test_a_stream_that_was_truncated_begins_after_what_was_deleted(three_bookies: Cluster) -> None:
    async def truncate(client: Client) -> None:
        await client.namespace().truncate("orders", before=2 * RECORDS)
        await Janitor(client, JanitorSettings(grace_s=0)).clean()

    lacking = await deleted_since_a_backup(three_bookies, truncate)
    assert lacking == [LackingRecords("default/orders", 0, 2 * RECORDS, dropped=True)]
    async with three_bookies.client() as client:
        assert (await client.namespace().info("orders")).earliest == 2 * RECORDS
        assert await offsets(client) == list(range(2 * RECORDS, 4 * RECORDS))
        with pytest.raises(OffsetTruncated):
            await offsets(client, 3)
        await goes_on(three_bookies, client, 4 * RECORDS)
        assert len(await rows(client)) == 3


async def test_what_lacks_in_the_middle_is_said_to_who_reads_it(three_bookies: Cluster) -> None:
    """As a compaction since the backup leaves it: the segments before and after are there."""

    async def delete(client: Client) -> None:
        streams = StreamStore(client.services.store)
        uid = (await streams.read(NAME)).head.uid
        for ledger in (await rows(client))[1:3]:
            await drop_ledger(client, streams, StreamId(None, uid), ledger)

    lacking = await deleted_since_a_backup(three_bookies, delete)
    assert lacking == [LackingRecords("default/orders", RECORDS, 3 * RECORDS, dropped=False)]
    async with three_bookies.client() as client:
        with pytest.raises(OffsetTruncated, match=r"offset 5 was truncated, the earliest is now 10"):
            await offsets(client)
        there = [*range(RECORDS), *range(3 * RECORDS, 4 * RECORDS)]
        assert await offsets(client, skip=True) == there
        assert await offsets(client, 3 * RECORDS) == there[RECORDS:]
        await goes_on(three_bookies, client, 4 * RECORDS)


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_stream_that_was_deleted_comes_back_empty(three_bookies: Cluster, is_open: bool) -> None:
    lacking = await deleted_since_a_backup(
        three_bookies, lambda client: client.namespace().delete("orders"), is_open=is_open
    )
    end = (3 if is_open else 4) * RECORDS
    assert lacking[0] == LackingRecords("default/orders", 0, end, dropped=True)
    assert lacking[1:] == ([LackingRecords("default/orders", end, None, dropped=True)] if is_open else [])
    async with three_bookies.client() as client:
        assert await offsets(client) == []
        async with client.namespace().writer("orders") as writer:
            with pytest.raises(OutOfOrderSequence, match=f"start={end}"):
                await writer.append(b"y", producer="p", sequence=end)
        await goes_on(three_bookies, client, end, producer=None)
        assert await offsets(client) == [end]
        await client.namespace().delete("orders")
        assert [one async for one in client.list()] == []
