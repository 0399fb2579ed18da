"""Our client on Apache's bookies, in a cluster that Apache's shell set up. INTEROP_ON=ours: the same on ours."""

from __future__ import annotations

import asyncio
import os
import subprocess

import pytest
from tests.chaos.processes import BUCKRAM, environment, last_json, run
from tests.interop.clusters import PASSWORD, Cluster, payload
from tests.interop.words import check, each_digest, each_wire, entries
from tests.support.polling import answered

from buckram.cluster import Client
from buckram.core.wire.availability import EntryList
from buckram.core.wire.messages import BookieInfoReply, GetBookieInfo, ListEntries, ListEntriesReply
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


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.getfixturevalue(os.environ.get("INTEROP_ON", "apache"))
    return found


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
            await answered(reader.read_last_confirmed, lambda last: last == 4)
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
    custom = dict((await client.metadata(made[1])).custom_metadata)
    assert len(custom.pop("buckram.birth")) == 16
    assert custom == {"number": b"1", "raw": b"\x00\xff"}


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


def test_our_commands_on_a_cluster_that_apache_set_up(cluster: Cluster) -> None:
    command = [*BUCKRAM, "cluster", "check", "--json"]
    done = subprocess.run(command, env=environment(BUCKRAM_METADATA=cluster.uri), capture_output=True, check=False)
    found = last_json(done.stdout.decode())
    errors = [one["what"] for one in found["problems"] if one["severity"] == "error"]
    assert (done.returncode, errors, found["manager"]) == (1, ["auditor-missing"], "hierarchical")
    assert sorted(found["writable"]) == cluster.bookies
    assert run(["bookie", "list"], cluster.uri).count("writable") == 3
    again = last_json(run(["cluster", "init", "--json"], cluster.uri))
    assert again["instance_id"] == found["instance_id"]
