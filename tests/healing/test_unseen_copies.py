"""What nobody has seen does not count: copies of a new member, bookies without a cookie, records of a strange shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.healing.test_lost_bookie import QUICK, healing, is_gone, members, tree, write
from tests.support.polling import eventually

from buckram.client.maintain.entry_lists import lists_all
from buckram.core.ledgers.metadata import birth_of, member_replaced
from buckram.errors import MalformedRecord
from buckram.healing.repair.replicator import Replicator
from buckram.runtime.process.tasks import TaskScope
from buckram.testing import cluster


async def test_a_member_that_a_dead_worker_named_gets_its_copies_before_the_mark_goes() -> None:
    """The worker died between the compare-and-set and its second look, and the target had dropped what it got."""
    async with cluster(bookies=4) as c, c.client() as client, TaskScope("test") as scope:
        ledger, store = await write(client, 40), client.services.store
        there = await members(client, ledger)
        gone, spare = sorted(there)[0], next(bookie for bookie in c.bookies if bookie not in there)
        await c.kill(c.bookies.index(gone))
        await eventually(lambda: is_gone(client, gone), "gone")
        await tree(client).prepare()
        await tree(client).mark(ledger, [gone], 0)
        found = await store.read_ledger(ledger)
        await store.write_ledger(ledger, member_replaced(found.metadata, 0, gone, spare), found.version)
        scope.spawn(Replicator(client, "r", QUICK).run(), "replicator")

        async def unmarked() -> bool:
            return [marked async for marked in tree(client).marked()] == []

        await eventually(unmarked, "unmarked")
        assert await lists_all(client.services, spare, ledger, birth_of(found.metadata), [(0, 39)])


async def test_a_bookie_that_does_not_answer_lists_nothing() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        ledger = await write(client, 10)
        birth, bookie = birth_of(await client.metadata(ledger)), c.bookies[0]
        assert await lists_all(client.services, bookie, ledger, birth, [(0, 9)]) is True
        await c.kill(0)
        assert await lists_all(client.services, bookie, ledger, birth, [(0, 9)]) is False


async def test_a_lost_bookie_without_a_cookie_is_healed_all_the_same() -> None:
    async with cluster(bookies=4) as c, c.client() as client:
        ledger, store = await write(client, 10), client.services.store
        gone = sorted(await members(client, ledger))[0]
        await c.kill(c.bookies.index(gone))
        await eventually(lambda: is_gone(client, gone), "gone")
        await store.delete_cookie(gone, (await store.read_cookie(gone)).version)

        async def healed() -> bool:
            return gone not in await members(client, ledger)

        async with healing(c):
            await eventually(healed, "healed")


@pytest.mark.parametrize("value", [{"x": 1}, {"bookies": 3, "why": ""}])
async def test_a_brake_of_a_strange_shape_is_named_and_ends_no_replicator(value: Any) -> None:
    async with cluster(bookies=3) as c, c.client() as client, TaskScope("test") as scope:
        keys, worker = client.services.store.keys, Replicator(client, "r", QUICK)
        await tree(client).prepare()
        key = f"{worker._board._base}/brake"
        await keys.create(key, json.dumps(value).encode())
        with pytest.raises(MalformedRecord, match="brake: not a brake"):
            await worker._round()
        scope.spawn(worker.run(), "replicator")
        await keys.delete(key, (await keys.get(key)).version)

        async def goes_on() -> bool:
            return worker.rounds > 0

        await eventually(goes_on, "the next round")
