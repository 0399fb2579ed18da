"""Two auditors: one is elected and the other takes over; where both believe that they are, nothing is done twice."""

from __future__ import annotations

import asyncio

from tests.healing.test_lost_bookie import QUICK, members, tree, write
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.core.healing.records import UnderreplicationMark
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.repair.replicator import Replicator
from buckram.runtime.process.tasks import TaskScope
from buckram.testing import Cluster, cluster


async def test_one_of_two_is_elected_and_the_other_takes_over() -> None:
    async with cluster(bookies=5) as c, c.client() as client, c.client() as other, TaskScope("test") as scope:
        first, second = Auditor(client, "first", QUICK), Auditor(other, "second", QUICK)
        running = scope.spawn(first.run(), "first")
        await eventually(lambda: _is_elected(first), "elected")
        scope.spawn(second.run(), "second")
        scope.spawn(Replicator(client, "r", QUICK).run(), "replicator")
        await _lose_a_member(c, client)
        assert (first.elected, second.elected) == (True, False)
        running.cancel()
        await first.close()
        await eventually(lambda: _is_elected(second), "taken over")
        await _lose_a_member(c, client)


async def test_two_that_both_believe_to_be_elected_make_one_mark_of_a_ledger() -> None:
    """One whose session has ended goes on with its audit until it learns of that."""
    async with cluster(bookies=4) as c, c.client() as client, c.client() as other:
        ledgers = [await write(client, 5) for _ in range(20)]
        lost = sorted(await members(client, ledgers[0]))[0]
        await tree(client).prepare()
        auditors = Auditor(client, "first", QUICK), Auditor(other, "second", QUICK)
        await asyncio.gather(*(auditor._audit({lost}) for auditor in auditors))
        expected = [ledger for ledger in ledgers if lost in await members(client, ledger)]
        assert [ledger async for ledger in tree(client).marked()] == expected
        for ledger in expected:
            mark = await tree(client).read_mark(ledger)
            assert isinstance(mark, UnderreplicationMark)
            assert mark.replicas == (lost,)


async def _is_elected(auditor: Auditor) -> bool:
    return auditor.elected


async def _lose_a_member(c: Cluster, client: Client) -> None:
    """Kill a bookie that holds something, and wait until others hold it and no mark is left."""
    ledger = await write(client, 20)
    gone = sorted(await members(client, ledger))[0]
    await c.kill(c.bookies.index(gone))

    async def healed() -> bool:
        return gone not in await members(client, ledger) and not [found async for found in tree(client).marked()]

    await eventually(healed, "healed")
