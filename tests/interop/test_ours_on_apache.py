"""Our client on Apache's bookies, in a cluster that Apache's shell set up; ledgers go to and fro with Apache's client.

INTEROP_ON=ours runs the same on our bookies.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.interop.apache import Java, JavaFailed, outcome
from tests.interop.clusters import PASSWORD, Cluster, payload
from tests.interop.live import LiveWriter, poll

from buckram.client.client import Client, connect
from buckram.client.reader import Reader
from buckram.config import ClientConfig
from buckram.core.availability import EntryList
from buckram.core.messages import BookieInfoReply, GetBookieInfo, ListEntries, ListEntriesReply
from buckram.errors import (
    DuplicateEntry,
    EntryTooLarge,
    InvalidArgument,
    LedgerClosed,
    LedgerExists,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    Unauthorized,
)
from buckram.types import LedgerState

WIRES = (2, 3)
DIGESTS = ("crc32", "crc32c", "mac", "dummy")
JAVA_DIGEST = {"crc32": "CRC32", "crc32c": "CRC32C", "mac": "MAC", "dummy": "DUMMY"}
each_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: f"v{wire}")
each_digest = pytest.mark.parametrize("digest", DIGESTS)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.getfixturevalue(os.environ.get("INTEROP_ON", "apache"))
    return found


@pytest.fixture
async def client(cluster: Cluster, wire: int) -> AsyncIterator[Client]:
    async with connect(cluster.uri, config=ClientConfig(wire_protocol=wire)) as connected:
        yield connected


@pytest.fixture
def ask(java: Java, cluster: Cluster, wire: int) -> Callable[..., Any]:
    """Apache's client on the same wire protocol: a coroutine, so that ours goes on meanwhile."""

    async def call(step: str, digest: str = "crc32c", **args: object) -> Any:
        known = {"uri": cluster.uri, "wire": f"v{wire}", "digest": JAVA_DIGEST[digest], **args}
        return await outcome(java.start(f"Handles.{step}", **known))

    return call


def entries(first: int, last: int) -> list[bytes]:
    return [payload(number) for number in range(first, last + 1)]


async def check(reader: Reader, first: int, last: int) -> None:
    found = await reader.read(first, last)
    assert [entry.entry_id for entry in found] == list(range(first, last + 1))
    assert [entry.payload for entry in found] == entries(first, last)


# -- alone on Apache's bookies -----------------------------------------------------------------------------------


@each_wire
@each_digest
async def test_append_close_and_read(client: Client, digest: str) -> None:
    async with client.create(digest=digest, password=PASSWORD) as writer:
        assert await writer.append_many(entries(0, 199)) == range(200)
        assert writer.last_confirmed == 199
    async with client.open(writer.ledger_id, password=PASSWORD) as reader:
        assert reader.last_confirmed == 199
        assert reader.length == sum(map(len, entries(0, 199)))
        await check(reader, 0, 199)
        await check(reader, 57, 61)
        assert (await reader.get(199)).payload == payload(199)


@each_wire
async def test_append_nowait_in_order(client: Client) -> None:
    async with client.create() as writer:
        futures = []
        for number in range(3000):
            futures.append(writer.append_nowait(payload(number)))
            if number % 500 == 499:
                await writer.flush()
        assert [await future for future in futures] == list(range(3000))
    async with client.open(writer.ledger_id) as reader:
        await check(reader, 0, 2999)


@each_wire
@pytest.mark.parametrize("shape", ["3/2/2", "3/2/1", "3/1/1", "1/1/1"])
async def test_striped(client: Client, shape: str) -> None:
    async with client.create(ensemble=shape) as writer:
        await writer.append_many(entries(0, 40))
    async with client.open(writer.ledger_id) as reader:
        await check(reader, 0, 40)


@each_wire
@each_digest
async def test_empty_and_largest_entries(client: Client, digest: str) -> None:
    largest = bytes(range(256)) * 20479  # the frame limit less 256 bytes, and nothing to spare
    async with client.create(digest=digest) as writer:
        await writer.append(b"")
        await writer.append(largest)
        await writer.append(b"")
        with pytest.raises(EntryTooLarge):
            await writer.append(largest + b"x")
    async with client.open(writer.ledger_id) as reader:
        assert [entry.payload for entry in await reader.read(0, 2)] == [b"", largest, b""]


@each_wire
@each_digest
async def test_read_unconfirmed(client: Client, digest: str) -> None:
    async with client.create(digest=digest, password=PASSWORD) as writer:
        await writer.append_many(entries(0, 9))
        async with client.open(writer.ledger_id, password=PASSWORD) as reader:
            found = await reader.read_unconfirmed(0, 9)
            assert [entry.payload for entry in found] == entries(0, 9)
            with pytest.raises(NoSuchEntry):
                await reader.read_unconfirmed(10, 10)


@each_wire
@each_digest
async def test_an_idle_writers_last_entry_becomes_confirmed(client: Client, digest: str) -> None:
    async with client.create(digest=digest) as writer:
        await writer.append_many(entries(0, 4))
        async with client.open(writer.ledger_id) as reader:
            await poll(reader.read_last_confirmed, lambda last: last == 4)
            await check(reader, 0, 4)


@each_wire
async def test_tailing(client: Client) -> None:
    async with client.create() as writer, client.open(writer.ledger_id) as reader:
        got: list[bytes] = []

        async def follow() -> None:
            async for entry in reader.tail():
                got.append(entry.payload)

        following = asyncio.ensure_future(follow())
        for number in range(60):
            await writer.append(payload(number))
        await writer.close()
        async with asyncio.timeout(20):
            await following
        assert got == entries(0, 59)


@each_wire
@each_digest
async def test_deferred_sync_and_force(client: Client, digest: str) -> None:
    async with client.create(deferred_sync=True, digest=digest) as writer:
        await writer.append_many(entries(0, 9))
        assert writer.last_confirmed == -1
        assert await writer.force() == 9
        await writer.append_many(entries(10, 12))
        assert await writer.force() == 12
    async with client.open(writer.ledger_id) as reader:
        await check(reader, 0, 12)


@each_wire
async def test_explicit_ids(client: Client) -> None:
    async with client.create(explicit_ids=True) as writer:
        futures = [writer.append_nowait(payload(number), entry_id=number) for number in range(30, -1, -1)]
        await asyncio.gather(*futures)
        with pytest.raises(DuplicateEntry):
            await writer.append(b"again", entry_id=7)
    async with client.open(writer.ledger_id) as reader:
        assert [entry.payload for entry in await reader.read(0, 30)] == entries(0, 30)


@each_wire
async def test_chosen_ledger_id(client: Client, wire: int) -> None:
    chosen = (1 << 40) + wire
    async with client.create(ledger_id=chosen) as writer:
        await writer.append(payload(0))
    with pytest.raises(LedgerExists):
        await client.create(ledger_id=chosen)
    await client.delete(chosen)


@each_wire
@each_digest
async def test_recovery_fences_the_writer(client: Client, digest: str) -> None:
    writer = await client.create(digest=digest, password=PASSWORD)
    await writer.append_many(entries(0, 24))
    async with client.recover(writer.ledger_id, password=PASSWORD) as reader:
        assert reader.metadata.state is LedgerState.CLOSED
        assert reader.last_confirmed == 24
        await check(reader, 0, 24)
    with pytest.raises((LedgerFenced, LedgerClosed)):
        await writer.append(payload(25))
    await writer.abandon()


@each_wire
@pytest.mark.parametrize("shape", ["3/2/2", "2/2/1"])
async def test_recovery_of_an_abandoned_striped_ledger(client: Client, shape: str) -> None:
    writer = await client.create(ensemble=shape)
    await writer.append_many(entries(0, 10))
    await writer.abandon()
    async with client.recover(writer.ledger_id) as reader:
        assert reader.last_confirmed == 10
        await check(reader, 0, 10)


@each_wire
async def test_recovery_of_an_empty_ledger(client: Client) -> None:
    writer = await client.create()
    async with client.recover(writer.ledger_id) as reader:
        assert reader.last_confirmed == -1
    await writer.abandon()


@each_wire
@each_digest
async def test_wrong_password(client: Client, digest: str) -> None:
    async with client.create(digest=digest, password=PASSWORD) as writer:
        await writer.append(payload(0))
        with pytest.raises(Unauthorized):
            await client.recover(writer.ledger_id, password=b"wrong")
        with pytest.raises(Unauthorized):
            await client.open(writer.ledger_id, password=b"wrong")
        await writer.append(payload(1))


@each_wire
async def test_delete(client: Client) -> None:
    async with client.create() as writer:
        await writer.append(payload(0))
    await client.delete(writer.ledger_id)
    with pytest.raises(NoSuchLedger):
        await client.open(writer.ledger_id)


@each_wire
async def test_list_and_custom_metadata(client: Client) -> None:
    made = []
    for number in range(3):
        async with client.create(custom_metadata={"number": str(number), "raw": b"\x00\xff"}) as writer:
            made.append(writer.ledger_id)
    listed = [ledger_id async for ledger_id in client.list()]
    assert listed == sorted(listed)
    assert set(made) <= set(listed)
    assert dict((await client.metadata(made[1])).custom_metadata) == {"number": b"1", "raw": b"\x00\xff"}


@each_wire
async def test_bookie_info_and_list_of_entries(client: Client, cluster: Cluster) -> None:
    async with client.create(ensemble="3/2/2") as writer:
        await writer.append_many(entries(0, 8))
    for position, bookie in enumerate(writer.metadata.last_fragment.ensemble):
        info = await client.services.pool.call(bookie, GetBookieInfo())
        assert isinstance(info, BookieInfoReply)
        assert (info.free_bytes or 0) > 0
        held = await client.services.pool.call(bookie, ListEntries(writer.ledger_id))
        assert isinstance(held, ListEntriesReply)
        wanted = [number for number in range(9) if position in (number % 3, (number + 1) % 3)]
        runs = EntryList.decode(held.availability).runs()
        assert [number for first, count in runs for number in range(first, first + count)] == wanted


@each_wire
async def test_repair_finds_nothing_to_do(client: Client) -> None:
    async with client.create() as writer:
        await writer.append_many(entries(0, 20))
    report = await client.repair(writer.ledger_id)
    assert report.entries_copied == 0


@each_wire
async def test_bad_arguments_reach_no_bookie(client: Client) -> None:
    with pytest.raises(InvalidArgument):
        client.create(ensemble="2/3/2")


# -- back and forth with Apache's client -------------------------------------------------------------------------


@each_wire
@each_digest
async def test_java_reads_what_we_wrote(client: Client, ask: Callable[..., Any], digest: str) -> None:
    async with client.create(digest=digest, password=PASSWORD, custom_metadata={"by": "python"}) as writer:
        await writer.append_many(entries(0, 120))
    read = await ask("read", digest, ledger=writer.ledger_id)
    assert read == {"last": 120, "length": sum(map(len, entries(0, 120))), "closed": True}
    facts = await ask("metadata", ledger=writer.ledger_id)
    assert (facts["state"], facts["last_entry"], facts["digest"]) == ("CLOSED", 120, JAVA_DIGEST[digest])
    assert (facts["custom"], facts["password"], facts["format"]) == ({"by": "python"}, "secret", 3)
    assert facts["fragments"] == {"0": list(writer.metadata.last_fragment.ensemble)}


@each_wire
@each_digest
async def test_we_read_what_java_wrote(client: Client, ask: Callable[..., Any], digest: str) -> None:
    made = await ask("create", digest, custom={"by": "java"})
    await ask("add", writer=made["writer"], count=80)
    await ask("closeWriter", writer=made["writer"])
    async with client.open(made["ledger"], password=PASSWORD) as reader:
        assert reader.last_confirmed == 79
        assert reader.length == sum(map(len, entries(0, 79)))
        assert dict(reader.metadata.custom_metadata) == {"by": b"java"}
        await check(reader, 0, 79)


@each_wire
@each_digest
async def test_we_recover_from_a_live_java_writer(client: Client, ask: Callable[..., Any], digest: str) -> None:
    made = await ask("create", digest)
    await ask("startWriting", writer=made["writer"])
    await ask("awaitAcknowledged", writer=made["writer"], entry=150)
    async with client.recover(made["ledger"], password=PASSWORD) as reader:
        state = await ask("stopWriting", writer=made["writer"])
        assert state["failed"] != 0, "the Java writer was not fenced"
        assert reader.last_confirmed >= state["acknowledged"]
        await check(reader, 0, reader.last_confirmed)


@each_wire
@each_digest
async def test_java_recovers_from_our_live_writer(client: Client, ask: Callable[..., Any], digest: str) -> None:
    writer = await client.create(digest=digest, password=PASSWORD)
    live = LiveWriter(writer)
    await live.reached(50)
    read = await ask("read", digest, ledger=writer.ledger_id, recover=True)
    await live.fenced()
    assert read["closed"]
    assert read["last"] >= live.acknowledged


@each_wire
async def test_both_tail_our_idle_writer(client: Client, ask: Callable[..., Any]) -> None:
    async with client.create(password=PASSWORD) as writer, client.open(writer.ledger_id, password=PASSWORD) as reader:
        java_tail = asyncio.ensure_future(ask("tail", ledger=writer.ledger_id, until=29))
        await writer.append_many(entries(0, 29))
        # Nothing follows entry 29: both learn of it from the explicit last confirmed entry alone.
        async with asyncio.timeout(30):
            assert (await java_tail)["last"] == 29
            tail = reader.tail()
            got: list[bytes] = []
            while len(got) < 30:
                got += [entry.payload for entry in await tail.next_chunk()]
        assert got == entries(0, 29)


@each_wire
async def test_both_tail_an_idle_java_writer(client: Client, ask: Callable[..., Any]) -> None:
    made = await ask("create")
    java_tail = asyncio.ensure_future(ask("tail", ledger=made["ledger"], until=24))
    await ask("add", writer=made["writer"], count=25)
    async with asyncio.timeout(30), client.open(made["ledger"], password=PASSWORD) as reader:
        tail = reader.tail()
        got: list[bytes] = []
        while len(got) < 25:
            got += [entry.payload for entry in await tail.next_chunk()]
        assert got == entries(0, 24)
        assert (await java_tail)["last"] == 24
    await ask("closeWriter", writer=made["writer"])


@pytest.mark.parametrize("wire", [3], ids=["v3"])
async def test_java_force_is_visible_to_us(client: Client, ask: Callable[..., Any]) -> None:
    made = await ask("create", deferred=True)
    await ask("add", writer=made["writer"], count=6)
    assert (await ask("force", writer=made["writer"]))["last_confirmed"] == 5
    async with client.recover(made["ledger"], password=PASSWORD) as reader:
        assert reader.last_confirmed >= 5
        await check(reader, 0, 5)


@pytest.mark.parametrize("wire", [2], ids=["v2"])
async def test_java_has_no_deferred_sync_on_v2(ask: Callable[..., Any]) -> None:
    """Ours has: what v2 lacks goes over v3."""
    made = await ask("create", deferred=True)
    with pytest.raises(JavaFailed) as refused:
        await ask("add", writer=made["writer"], count=1)
    assert refused.value.error == "BKIllegalOpException"


@each_wire
async def test_java_lists_and_deletes_what_we_made(client: Client, ask: Callable[..., Any]) -> None:
    async with client.create() as writer:
        await writer.append(payload(0))
    assert writer.ledger_id in await ask("list")
    await ask("delete", ledger=writer.ledger_id)
    with pytest.raises(NoSuchLedger):
        await client.open(writer.ledger_id)


@each_wire
async def test_java_gets_no_further_with_a_wrong_password(client: Client, ask: Callable[..., Any]) -> None:
    async with client.create(password=PASSWORD) as writer:
        await writer.append(payload(0))
        with pytest.raises(JavaFailed) as refused:
            await ask("read", ledger=writer.ledger_id, recover=True, password="wrong")
        assert refused.value.error == "BKUnauthorizedAccessException"
        await writer.append(payload(1))
