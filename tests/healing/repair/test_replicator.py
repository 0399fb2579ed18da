"""A replicator stops at once when its locks may be somebody else's, and one bad record does not keep it from others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.healing.test_lost_bookie import QUICK, members, waiting, write
from tests.support.polling import eventually

from buckram.core.healing.status import Why
from buckram.healing.repair.replicator import Replicator
from buckram.metadata.records.underreplication import Candidate, Underreplication
from buckram.runtime.process.tasks import TaskScope
from buckram.testing import cluster
from buckram.types import LedgerId


async def test_a_replicator_whose_session_ends_drops_what_it_copies_and_begins_anew() -> None:
    slow = replace(QUICK, copy_bytes_per_s=100_000)
    async with cluster(bookies=4) as c, c.client() as client, TaskScope("test") as scope:
        ledger = await write(client, 200)
        gone = sorted(await members(client, ledger))[0]
        await c.kill(c.bookies.index(gone))
        tree = Underreplication(client.services.store.keys, client.services.store.root, "test")
        await tree.prepare()
        await eventually(lambda: _is_gone(client, gone), "gone")
        await tree.mark(ledger, [gone], 0)
        worker = Replicator(client, "r", slow)
        scope.spawn(worker.run(), "replicator")
        await eventually(lambda: _is_true(lambda: bool(worker._active)), "at work")
        await eventually(lambda: _is_true(lambda: bool(worker._attempts)), "copying")
        (attempt,) = worker._attempts.values()
        worker._session_lost()
        await eventually(lambda: _is_true(lambda: worker._attempts.get(ledger) is not attempt), "stopped", seconds=1.0)
        assert attempt.expired()
        assert gone in await members(client, ledger)

        async def healed() -> bool:
            return gone not in await members(client, ledger)

        await eventually(healed, "healed")


async def test_what_is_being_copied_stops_when_autorecovery_is_disabled_and_goes_on_when_it_is_enabled() -> None:
    slow = replace(QUICK, copy_bytes_per_s=10_000, ledgers_at_once=1)
    async with cluster(bookies=4) as c, c.client() as client, TaskScope("test") as scope:
        ledgers = [await write(client, 200) for _ in range(40)]
        gone = sorted(await members(client, ledgers[0]))[0]
        await c.kill(c.bookies.index(gone))
        tree = Underreplication(client.services.store.keys, client.services.store.root, "test")
        await tree.prepare()
        await eventually(lambda: _is_gone(client, gone), "gone")
        marked = [ledger for ledger in ledgers if gone in await members(client, ledger)]
        for ledger in marked:
            await tree.mark(ledger, [gone], 0)
        worker = Replicator(client, "r", slow)
        running = scope.spawn(worker.run(), "replicator")
        await eventually(lambda: _is_true(lambda: bool(worker._attempts)), "copying")
        await tree.enable(False)

        async def stopped() -> bool:
            return not worker._active and not await tree.locked()

        await eventually(stopped, "stopped", seconds=5.0)
        left = [ledger for ledger in marked if gone in await members(client, ledger)]
        assert left
        running.cancel()
        await worker.close()
        scope.spawn(Replicator(client, "q", QUICK).run(), "replicator")
        await tree.enable(True)

        async def healed() -> bool:
            return not [ledger for ledger in left if gone in await members(client, ledger)]

        await eventually(healed, "healed")


async def test_a_ledger_whose_record_cannot_be_read_waits_with_that_reason_and_stops_no_other() -> None:
    async with cluster(bookies=4) as c, c.client() as client, TaskScope("test") as scope:
        bad, good = await write(client, 20), await write(client, 20)
        store = client.services.store
        tree = Underreplication(store.keys, store.root, "test")
        await tree.prepare()
        gone = sorted(await members(client, good))[0]
        await c.kill(c.bookies.index(gone))
        await eventually(lambda: _is_gone(client, gone), "gone")
        key = await store.ledgers.key(bad)
        await store.keys.set(key, b"nonsense", (await store.keys.get(key)).version)
        for ledger in (bad, good):
            await tree.mark(ledger, [gone], 0)
        scope.spawn(Replicator(client, "r", QUICK).run(), "replicator")

        async def healed() -> bool:
            return gone not in await members(client, good)

        await eventually(healed, "healed")
        await eventually(lambda: waiting(client), "waiting")
        assert [(w.ledger, w.reasons[0].why) for w in await waiting(client)] == [(bad, Why.UNREADABLE_RECORD)]


class _Noted(Replicator):
    """Notes in which order ledgers are taken."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.taken: list[LedgerId] = []

    async def _take(self, candidate: Candidate) -> None:
        self.taken.append(candidate.ledger)
        await super()._take(candidate)


async def test_ledgers_with_the_fewest_copies_are_repaired_first() -> None:
    async with cluster(bookies=5) as c, c.client() as client, TaskScope("test") as scope:
        ledgers = [await write(client, 4) for _ in range(20)]
        kept = await members(client, ledgers[0])
        gone = [name for name in c.bookies if name not in kept][:2]
        for name in gone:
            await c.kill(c.bookies.index(name))
            await eventually(lambda name=name: _is_gone(client, name), "gone")
        lost = {ledger: len(lacking) for ledger in ledgers if (lacking := await members(client, ledger) & {*gone})}
        expected = sorted(lost, key=lambda ledger: (-lost[ledger], ledger))
        assert {*lost.values()} == {1, 2}
        assert expected not in (sorted(lost), sorted(lost, reverse=True)), "an order of ids would do as well"
        tree = Underreplication(client.services.store.keys, client.services.store.root, "test")
        await tree.prepare()
        for ledger in lost:
            await tree.mark(ledger, sorted(await members(client, ledger) & {*gone}), 0)
        worker = _Noted(client, "r", QUICK)
        scope.spawn(worker.run(), "replicator")

        async def healed() -> bool:
            return not any([await members(client, ledger) & {*gone} for ledger in lost])

        await eventually(healed, "healed")
        assert worker.taken[: len(expected)] == expected


async def _is_gone(client, bookie: str) -> bool:  # type: ignore[no-untyped-def]
    return client.services.bookies.info(bookie) is None


async def _is_true(fact) -> bool:  # type: ignore[no-untyped-def]
    await asyncio.sleep(0)
    return bool(fact())
