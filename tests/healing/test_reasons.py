"""What keeps a marked ledger waiting has its true name, and what keeps nothing from being whole keeps no mark."""

from __future__ import annotations

from dataclasses import replace

from tests.healing.test_lost_bookie import QUICK, healing, is_gone, members, tree, waiting, write
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.core.healing.status import Why
from buckram.core.ledgers.metadata_codec import serialise
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.repair.replicator import Replicator
from buckram.runtime.process.tasks import TaskScope
from buckram.testing import cluster


async def unmarked(client: Client) -> bool:
    return [ledger async for ledger in tree(client).marked()] == []


async def test_a_mark_that_nobody_can_read_keeps_the_auditor_from_no_other_ledger() -> None:
    async with cluster(bookies=4) as c, c.client() as client, TaskScope("healing") as scope:
        marks, store = tree(client), client.services.store
        await marks.prepare()
        ledgers = [await write(client, 1) for _ in range(70)]  # an audit looks at 64 at a time
        gone = sorted(await members(client, ledgers[0]) & await members(client, ledgers[-1]))[0]
        await marks.mark(ledgers[0], [gone], 0)
        key = marks.paths.mark(ledgers[0])
        await store.keys.set(key, b"\xff nonsense", (await store.keys.get(key)).version)
        await c.kill(c.bookies.index(gone))
        await eventually(lambda: is_gone(client, gone), "gone")
        scope.spawn(Auditor(client, "a", QUICK).run(), "auditor")
        scope.spawn(Replicator(client, "r", QUICK).run(), "replicator")

        async def healed() -> bool:
            return gone not in await members(client, ledgers[-1])

        await eventually(healed, "healed")
        await eventually(lambda: waiting(client), "waiting")
        assert [(w.ledger, w.reasons[0].why) for w in await waiting(client)] == [(ledgers[0], Why.UNREADABLE_RECORD)]


async def test_an_open_ledger_whose_members_all_live_does_not_stay_marked() -> None:
    async with cluster(bookies=3) as c, healing(c) as client, await client.create(ensemble=(3, 3, 2)) as writer:
        await writer.append(b"one")
        await tree(client).mark(writer.ledger_id, [c.bookies[0]], 0)  # which came back in time
        await eventually(lambda: unmarked(client), "unmarked")
        await writer.append(b"two")  # and nobody fenced the writer
        assert await waiting(client) == []


async def test_entries_that_every_member_denies_are_said_to_be_lost() -> None:
    async with cluster(bookies=3) as c, healing(c) as client:
        ledger, store = await write(client, 10), client.services.store
        metadata = (await store.read_ledger(ledger)).metadata
        key = await store.ledgers.key(ledger)
        longer = serialise(replace(metadata, last_entry=12))  # three entries that were never written
        await store.keys.set(key, longer, (await store.keys.get(key)).version)
        await tree(client).mark(ledger, [], 0)
        await eventually(lambda: waiting(client), "waiting")
        (found,) = await waiting(client)
        assert [(reason.why, reason.entries) for reason in found.reasons] == [(Why.NO_GOOD_COPY, ((10, 12),))]
        assert found.lost == ((10, 12),)


async def test_a_check_of_copies_that_finds_a_member_gone_and_none_to_take_its_place_says_that() -> None:
    async with cluster(bookies=3) as c, c.client() as client, TaskScope("healing") as scope:
        ledger = await write(client, 10)
        await tree(client).prepare()
        await c.kill(0)
        await eventually(lambda: is_gone(client, c.bookies[0]), "gone")
        await tree(client).mark(ledger, [], 0)
        scope.spawn(Replicator(client, "r", QUICK).run(), "replicator")
        await eventually(lambda: waiting(client), "waiting")
        (found,) = await waiting(client)
        assert [reason.why for reason in found.reasons] == [Why.NO_BOOKIE]


async def test_a_mark_that_asks_for_all_copies_still_does_when_names_come_later() -> None:
    async with cluster(bookies=4) as c, c.client() as client, TaskScope("healing") as scope:
        ledger, store, marks = await write(client, 10, (4, 2, 2)), client.services.store, tree(client)
        metadata = (await store.read_ledger(ledger)).metadata
        key = await store.ledgers.key(ledger)
        await store.keys.set(key, serialise(replace(metadata, last_entry=12)), (await store.keys.get(key)).version)
        await marks.prepare()
        await marks.mark(ledger, [], 0)
        await marks.mark(ledger, ["a bookie that was replaced long ago"], 0)
        scope.spawn(Replicator(client, "r", QUICK).run(), "replicator")
        await eventually(lambda: waiting(client), "waiting")
        (found,) = await waiting(client)
        assert found.lost == ((10, 12),)
