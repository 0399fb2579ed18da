"""An open ledger that was marked and whose members are all there again does not wait for an end that may never come."""

from __future__ import annotations

from tests.healing.test_lost_bookie import QUICK, is_gone, there, tree
from tests.support.polling import eventually

from buckram.healing.repair.replicator import Replicator
from buckram.runtime.process.tasks import TaskScope
from buckram.testing import cluster


async def test_confirmed_entries_are_filled_in_and_the_mark_goes() -> None:
    async with cluster(bookies=3) as c, c.client() as client, TaskScope("test") as scope:
        writer = await client.create(ensemble=(3, 3, 2))
        ledger, away = writer.ledger_id, c.bookies[0]
        await c.kill(0)
        await eventually(lambda: is_gone(client, away), "gone")
        await writer.append_many([b"x" * 100] * 50)
        await writer.abandon()
        await c.restart(0)
        await eventually(lambda: there(client, away), "back")
        await tree(client).prepare()
        await tree(client).mark(ledger, [away], 0)
        scope.spawn(Replicator(client, "r", QUICK).run(), "replicator")

        async def unmarked() -> bool:
            return [found async for found in tree(client).marked()] == []

        await eventually(unmarked, "unmarked", seconds=20.0)
        assert not (await client.metadata(ledger)).closed
        async with client.recover(ledger) as reader:
            assert reader.last_confirmed == 49
        report = await client.repair(ledger)
        assert (report.healthy, report.entries_copied) == (True, 0)
