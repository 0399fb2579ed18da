"""Bulk reads from the files of bookies beside the client: always the same entries, whatever becomes of the files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.local_reads_kit import (
    ALWAYS,
    KIB,
    PendingRequest,
    leaving_nothing,
    reading,
    recording,
    same_in_every_way,
    settle,
    settled,
    sized,
)
from tests.support.polling import until

from buckram.core.wire.messages import BatchRead
from buckram.errors import HandleClosed
from buckram.runtime.disk.neighbours import NeighbourDirectory
from buckram.runtime.net.pool import BookiePool
from buckram.seams import FileData, FileRange
from buckram.testing import cluster

asked = pytest.fixture(recording)
nothing_is_left = pytest.fixture(autouse=True)(leaving_nothing)


@pytest.mark.parametrize("kind", ["tiny", "empty", "large", "one", "mixed"])
async def test_every_size_comes_as_from_bookies(kind: str) -> None:
    payloads = sized(kind)
    async with settled(payloads) as (c, (ledger,)):
        await same_in_every_way(c, ledger, payloads)


@pytest.mark.parametrize("digest", ["crc32", "mac"])
async def test_every_digest_and_a_password(digest: str) -> None:
    payloads = sized("mixed")
    async with settled(payloads, digest=digest, password="secret") as (c, (ledger,)):
        await same_in_every_way(c, ledger, payloads, "secret")


async def test_ledgers_that_lie_between_each_other() -> None:
    """Many extents of one entry."""
    async with cluster(3) as c:
        expected: list[list[bytes]] = [[], [], []]
        async with c.client() as client:  # noqa: SIM117 - too long as one
            async with client.create() as a, client.create(ensemble="3/3/2") as b, client.create() as d:
                for entry in range(150):
                    for writer, payloads in zip((a, b, d), expected, strict=True):
                        payloads.append(b"%d" % entry * (1 + entry % 7))
                        await writer.append(payloads[-1])
        await settle(c)
        for writer, payloads in zip((a, b, d), expected, strict=True):
            await same_in_every_way(c, writer.ledger_id, payloads)
        async with reading(c) as (client, files), client.open(a.ledger_id) as reader:
            assert await reader.read_payloads(0, 149) == expected[0]
            assert sum(map(len, files.reads)) > 50


async def test_each_fragment_is_read_where_it_is(asked: PendingRequest) -> None:
    payloads = sized("mixed")
    async with cluster(3) as c:
        async with c.client(ALWAYS) as client, client.create(ensemble="2/2/2") as writer:
            await writer.append_many(payloads)
            gone = writer.metadata.last_fragment.ensemble[0]
            await c.kill(c.bookies.index(gone))
            await writer.append_many(payloads)
        assert len(writer.metadata.fragments) == 2
        await c.restart(c.bookies.index(gone))
        await settle(c)
        await same_in_every_way(c, writer.ledger_id, payloads * 2)
        first, second = (fragment.ensemble[0] for fragment in writer.metadata.fragments)
        assert first != second
        assert {first, second} <= set(asked)


async def test_what_is_in_memory_comes_from_bookies(asked: PendingRequest) -> None:
    payloads = sized("mixed")
    async with cluster(3) as c:
        async with c.client(ALWAYS) as other, other.create(ensemble="3/3/3") as writer:
            await writer.append_many(payloads[:20])
            await settle(c)
            await writer.append_many(payloads[20:])
        async with reading(c) as (client, _), client.open(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, 39) == payloads
        assert asked


async def test_without_a_digest_nobody_asks_for_places(asked: PendingRequest) -> None:
    payloads = sized("large")
    async with settled(payloads, digest="dummy") as (c, (ledger,)), reading(c) as (client, files):
        async with client.open(ledger) as reader:
            assert await reader.read_payloads(0, 11) == payloads
        assert (asked, files.opened) == ([], [])


async def test_striped_ledgers_and_the_other_protocol_do_without(asked: PendingRequest) -> None:
    payloads = sized("mixed")
    async with settled(payloads, ensemble="3/2/2") as (c, (ledger,)):  # noqa: SIM117 - too long as one
        async with reading(c) as (client, files), client.open(ledger) as reader:
            assert await reader.read_payloads(0, 39) == payloads
            assert files.opened == []
    async with settled(payloads) as (c, (ledger,)):  # noqa: SIM117 - too long as one
        async with reading(c, replace(ALWAYS, wire_protocol=3)) as (client, files), client.open(ledger) as reader:
            assert await reader.read_payloads(0, 39) == payloads
            assert files.opened == []
    assert asked == []


async def test_small_reads_ask_as_ever_and_every_client_can(
    monkeypatch: pytest.MonkeyPatch, asked: PendingRequest
) -> None:
    reads: list[int] = []
    read = NeighbourDirectory.read

    def counted(self: NeighbourDirectory, places: Sequence[FileRange]) -> asyncio.Future[list[FileData]]:
        reads.append(len(places))
        return read(self, places)

    monkeypatch.setattr(NeighbourDirectory, "read", counted)
    payloads = sized("large")
    async with settled(payloads) as (c, (ledger,)), c.client() as client, client.open(ledger) as reader:
        assert await reader.read_payloads(0, 5) == payloads[:6]  # 1.8 MB
        assert (asked, reads) == ([], [])
        assert await reader.read_payloads(0, 11) == payloads  # 3.6 MB
        assert asked
        assert reads


# -- files that are not as they should be


@pytest.mark.parametrize("kind", ["large", "tiny"])
@pytest.mark.parametrize("part", [0.0, 0.4, 0.999])
async def test_a_flipped_byte_is_never_read(asked: PendingRequest, kind: str, part: float) -> None:
    payloads = sized(kind)
    async with settled(payloads) as (c, (ledger,)), reading(c) as (client, files), client.open(ledger) as reader:
        last = len(payloads) - 1
        await reader.read_payloads(0, last)
        located = asked.located[0]
        total = sum(extent.length for extent in located.extents)
        at = int(part * total)
        for extent in located.extents:
            if at < extent.length:
                break
            at -= extent.length
        with (Path(located.directory) / extent.name).open("r+b") as file:
            file.seek(extent.offset + at)
            byte = file.read(1)
            file.seek(extent.offset + at)
            file.write(bytes([byte[0] ^ 4]))
        before = files.bytes
        assert await reader.read_payloads(0, last) == payloads
        assert [entry.payload for entry in await reader.read(0, last)] == payloads
        assert files.bytes > before


@pytest.mark.parametrize("kind", ["large", "tiny"])
async def test_files_that_are_removed(asked: PendingRequest, kind: str) -> None:
    payloads = sized(kind)
    async with settled(payloads) as (c, (ledger,)), reading(c) as (client, files), client.open(ledger) as reader:
        last = len(payloads) - 1
        await reader.read_payloads(0, last)
        for extent in asked.located[0].extents:
            (Path(asked.located[0].directory) / extent.name).unlink(missing_ok=True)
        before = len(files.reads)
        assert await reader.read_payloads(0, last) == payloads
        assert len(files.reads) > before


async def test_bookies_elsewhere_are_asked_once(asked: PendingRequest) -> None:
    payloads = sized("large")
    async with settled(payloads) as (c, (ledger,)), reading(c) as (client, files), client.open(ledger) as reader:
        files.here = False
        for _ in range(5):
            assert await reader.read_payloads(0, 11) == payloads
        assert files.reads == []
        assert 0 < len(asked) <= 3
        assert len(set(asked)) == len(asked)


async def test_files_that_may_not_be_read_are_tried_once_per_bookie(
    asked: PendingRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: NeighbourDirectory, places: Sequence[FileRange]) -> list[FileData]:
        raise PermissionError("of another user")

    monkeypatch.setattr(NeighbourDirectory, "read_now", refused)
    payloads = sized("large")
    async with settled(payloads) as (c, (ledger,)), reading(c) as (client, files), client.open(ledger) as reader:
        for _ in range(5):
            assert await reader.read_payloads(0, 11) == payloads
        assert 0 < len(files.opened) <= 3
        assert len(set(files.opened)) == len(files.opened)


async def test_a_device_that_hangs_is_not_waited_for() -> None:
    payloads = sized("large")
    async with settled(payloads) as (c, (ledger,)):  # noqa: SIM117 - too long as one
        async with reading(c, replace(ALWAYS, speculative_read_ms=200.0)) as (client, files):
            files.gate = asyncio.Event()  # never
            async with client.open(ledger) as reader, asyncio.timeout(60):
                assert await reader.read_payloads(0, 11) == payloads
            assert files.reads


# -- an end in the middle


async def test_others_have_their_turn_between_chunks(asked: PendingRequest) -> None:
    """Files of a fast device are read without waiting, for a whole ledger: nobody else would get on meanwhile."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with (
        settled([bytes(100 * KIB)] * 60) as (c, (ledger,)),
        reading(c) as (client, files),
        client.open(ledger) as reader,
    ):
        beside = asyncio.create_task(other())
        before, seen = 0, []
        async for _ in reader.payload_chunks():
            seen.append(turns - before)
            before = turns
        beside.cancel()
    assert len(files.reads) >= 5
    assert min(seen) >= 1, seen


async def test_a_reader_closed_between_chunks(asked: PendingRequest) -> None:
    async with settled(sized("large")) as (c, (ledger,)), reading(c) as (client, files):
        reader = await client.open(ledger)
        chunks = reader.chunks()
        assert await anext(chunks)
        await reader.close()
        with pytest.raises(HandleClosed):
            await anext(chunks)
        assert files.reads


@pytest.mark.parametrize("whole", [True, False])
async def test_a_reader_or_client_closed_while_files_are_read(whole: bool) -> None:
    async with settled(sized("large")) as (c, (ledger,)), reading(c) as (client, files):
        files.gate = asyncio.Event()
        reader = await client.open(ledger)
        task = asyncio.create_task(reader.read_payloads(0, 11))
        await until(lambda: files.reads != [], "files are read")
        await (client if whole else reader).close()
        files.gate.set()
        with pytest.raises(HandleClosed):
            await task


async def test_a_reader_closed_while_places_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    never, waiting = asyncio.Event(), asyncio.Event()
    call = BookiePool.call

    async def hanging(self: BookiePool, bookie: str, request: Any, **options: Any) -> Any:
        if isinstance(request, BatchRead) and request.located:
            waiting.set()
            await never.wait()
        return await call(self, bookie, request, **options)

    monkeypatch.setattr(BookiePool, "call", hanging)
    config = replace(ALWAYS, speculative_read_ms=0.0)
    async with settled(sized("one")) as (c, (ledger,)), reading(c, config) as (client, _):
        reader = await client.open(ledger)
        task = asyncio.create_task(reader.read_payloads(0, 0))
        await waiting.wait()
        await reader.close()
        with pytest.raises(HandleClosed):
            await task


async def test_a_caller_cancelled_while_files_are_read() -> None:
    payloads = sized("large")
    async with settled(payloads) as (c, (ledger,)), reading(c) as (client, files), client.open(ledger) as reader:
        files.gate = asyncio.Event()
        task = asyncio.create_task(reader.read_payloads(0, 11))
        await until(lambda: files.reads != [], "files are read")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        files.gate = None
        before = files.bytes
        assert await reader.read_payloads(0, 11) == payloads
        assert files.bytes > before


async def test_a_caller_cancelled_when_a_read_has_failed_already(asked: PendingRequest) -> None:
    payloads = sized("large")
    async with settled(payloads) as (c, (ledger,)), reading(c) as (client, files), client.open(ledger) as reader:
        await reader.read_payloads(0, 11)
        for extent in asked.located[0].extents:
            (Path(asked.located[0].directory) / extent.name).unlink(missing_ok=True)
        files.reads.clear()
        task = asyncio.create_task(reader.read_payloads(0, 11))
        while not files.reads:  # noqa: ASYNC110 - an event would be seen a turn later
            await asyncio.sleep(0)  # no turn more than until the read was tried
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_consumer_that_stops_early() -> None:
    payloads = sized("large")
    async with settled(payloads) as (c, (ledger,)), reading(c) as (client, files), client.open(ledger) as reader:
        async for entry in reader.entries():
            assert entry.payload == payloads[0]
            break
        assert files.reads
