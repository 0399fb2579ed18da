"""Orphans: all are found and nothing else is; the ledger commands do not delete ledgers of streams."""

from __future__ import annotations

import asyncio

import pytest

from buckram.cluster import Client
from buckram.core.streams.metadata.head import PAGE_SEGMENTS
from buckram.core.streams.names import owner_mark, stream_name
from buckram.errors import InvalidArgument, LedgerOfStream, MalformedRecord, NoSuchLedger
from buckram.namespace import Namespace
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.orphans import delete_orphan, find_orphans
from buckram.streams.shared.ledgers import make_ledger


async def late_creation(client: Client, stream: str, uid: str) -> int:
    """Make a ledger whose creation arrived after its intent was discarded."""
    async with client.create(custom_metadata=dict(owner_mark(stream_name(stream), uid, "segment"))) as writer:
        return writer.ledger_id


async def test_a_healthy_stream_has_no_orphans(client: Client, ns: Namespace) -> None:
    async with ns.writer("s") as writer:
        for _ in range(3):
            await writer.append(b"x")
            await writer.roll()
        async with client.create() as own:
            await own.append(b"a ledger of its own")
        assert await find_orphans(client, ns.store) == []


async def test_orphans_name_their_reason_and_can_be_deleted(client: Client, ns: Namespace) -> None:
    async with ns.writer("s") as writer:
        await writer.append(b"x")
    uid = (await ns.info("s")).uid
    one = await late_creation(client, "shop/s", uid)
    two = await late_creation(client, "shop/s", "0123456789abcdef")
    found = await find_orphans(client, ns.store)
    assert [(o.ledger, o.stream, o.uid, o.reason, o.safe) for o in found] == [
        (one, "shop/s", uid, "discarded", True),
        (two, "shop/s", "0123456789abcdef", "stream deleted", True),
    ]
    assert all(o.age_s is not None and -60 < o.age_s < 60 for o in found)
    for orphan in found:
        await delete_orphan(client, orphan)
        await delete_orphan(client, orphan)  # Deleting it again does nothing.
    assert await find_orphans(client, ns.store) == []
    assert [r.value async for r in ns.read("s")] == [b"x"]


async def test_the_janitor_deletes_orphans_unless_switched_off(client: Client, ns: Namespace) -> None:
    await ns.create("s")
    orphan = await late_creation(client, "shop/s", (await ns.info("s")).uid)
    assert (await Janitor(client, JanitorSettings(grace_s=0, orphans=False)).clean()).orphans == 0
    assert (await client.metadata(orphan)).closed
    assert (await Janitor(client, JanitorSettings(grace_s=0)).clean()).orphans == 1
    with pytest.raises(NoSuchLedger):
        await client.metadata(orphan)


async def test_a_ledger_with_an_intent_is_no_orphan(client: Client, ns: Namespace) -> None:
    info = await ns.create("s")
    made, _ = await make_ledger(client, ns.store, stream_name("s", "shop"), info.uid, info.policy, epoch=1)
    await made.abandon()
    assert await find_orphans(client, ns.store) == []
    (found,) = await find_orphans(client, ns.store, in_progress=True)
    assert (found.ledger, found.reason, found.safe) == (made.ledger_id, "in progress", False)
    with pytest.raises(InvalidArgument, match="janitor"):
        await delete_orphan(client, found)
    assert not (await client.metadata(made.ledger_id)).closed


async def test_segments_in_pages_are_no_orphans(client: Client, ns: Namespace) -> None:
    await ns.create("s", ensemble="1/1/1")
    bulk = await ns.bulk("s", application="job", version=1)

    async def one() -> object:
        ledger = await bulk.create_ledger()
        await ledger.append_many([b"x"])
        return await ledger.close()

    sealed = []
    for _ in range(6):
        sealed += await asyncio.gather(*(one() for _ in range(100)))
    await bulk.publish(sealed)  # type: ignore[arg-type]
    head = (await ns.store.read(stream_name("s", "shop"))).head
    assert head.paged >= PAGE_SEGMENTS
    orphan = await late_creation(client, "shop/s", head.uid)
    assert [o.ledger for o in await find_orphans(client, ns.store)] == [orphan]


async def test_no_ledger_counts_as_orphan_while_a_stream_is_unreadable(client: Client, ns: Namespace) -> None:
    async with ns.writer("s") as writer:
        await writer.append(b"x")
    key = ns.store.layout.head(stream_name("s", "shop"))
    kept = await ns.store.keys.get(key)
    await ns.store.keys.set(key, b"{}", kept.version)
    with pytest.raises(MalformedRecord, match="shop/s"):
        await find_orphans(client, ns.store)
    report = await Janitor(client, JanitorSettings(grace_s=0)).clean()
    assert report.orphans == 0
    assert report.problems
    await ns.store.keys.set(key, kept.value, kept.version + 1)
    assert [r.value async for r in ns.read("s")] == [b"x"]


async def test_deleting_a_ledger_of_a_stream_is_refused(client: Client, ns: Namespace) -> None:
    async with ns.writer("s") as writer:
        await writer.append(b"x")
    (row,) = [row async for row in ns.segments("s")]
    for force in (False, True):
        with pytest.raises(LedgerOfStream, match="shop/s") as refused:
            await client.delete(row.ledger, force=force)
    assert (refused.value.ledger_id, refused.value.stream) == (row.ledger, "shop/s")
    assert [r.value async for r in ns.read("s")] == [b"x"]
    async with client.create() as own:
        pass
    await client.delete(own.ledger_id)
