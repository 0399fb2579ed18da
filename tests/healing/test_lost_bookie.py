"""A bookie is lost and the cluster heals itself, with real bookies, or says why it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest
from tests.support.polling import eventually

from buckram.client.maintain.repair_report import RepairReport
from buckram.cluster import Client
from buckram.config import HealingConfig
from buckram.core.healing.status import WaitingLedger, Why
from buckram.core.placement.topology import RackMap
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.repair import replicator as replicator_module
from buckram.healing.repair.replicator import Replicator
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.topology import change_rack_map
from buckram.metadata.records.underreplication import Underreplication
from buckram.runtime.process.tasks import TaskScope
from buckram.testing import Cluster, cluster

QUICK = HealingConfig(lost_bookie_delay_s=0.2, open_ledger_grace_s=0.5, retry_s=0.2, copy_bytes_per_s=0)


@asynccontextmanager
async def healing(c: Cluster, config: HealingConfig = QUICK) -> AsyncIterator[Client]:
    """A client in whose process an auditor and a replicator run, which looks at the marks more often than usual."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicator_module, "_POLL_S", 0.2)
        async with _healing(c, config) as client:
            yield client


@asynccontextmanager
async def _healing(c: Cluster, config: HealingConfig) -> AsyncIterator[Client]:
    async with c.client() as client, TaskScope("healing") as scope:
        auditor, replicator = Auditor(client, "a", config), Replicator(client, "r", config)
        scope.spawn(auditor.run(), "auditor")
        scope.spawn(replicator.run(), "replicator")
        yield client


async def write(client: Client, count: int, ensemble: object = (3, 3, 2), size: int = 1000) -> int:
    async with await client.create(ensemble=ensemble) as writer:  # type: ignore[arg-type]
        await writer.append_many([i.to_bytes(4, "big") * (size // 4) for i in range(count)])
        return writer.ledger_id


async def members(client: Client, ledger: int) -> set[str]:
    metadata = (await client.services.store.read_ledger(ledger)).metadata
    return {member for fragment in metadata.fragments for member in fragment.ensemble}


async def waiting(client: Client) -> list[WaitingLedger]:
    return [found async for found in HealingStatusStore(client.services.store).waiting()]


def tree(client: Client) -> Underreplication:
    return Underreplication(client.services.store.keys, client.services.store.root, "test")


async def checked(client: Client, ledger: int) -> RepairReport:
    return await client.repair(ledger)


@pytest.mark.parametrize("ensemble", [(3, 3, 2), (4, 2, 2), (2, 2, 1)])
async def test_a_lost_bookies_ledgers_are_copied_to_others(ensemble: tuple[int, int, int]) -> None:
    async with cluster(bookies=5) as c, healing(c) as client:
        ledgers = [await write(client, 500, ensemble) for _ in range(4)]
        gone = sorted(await members(client, ledgers[0]))[0]
        await c.kill(c.bookies.index(gone))

        async def healed() -> bool:
            return all([gone not in await members(client, ledger) for ledger in ledgers])

        await eventually(healed, "healed")

        async def unmarked() -> bool:
            return [ledger async for ledger in tree(client).marked()] == []

        await eventually(unmarked, "unmarked")
        for ledger in ledgers:
            report = await checked(client, ledger)
            assert (report.healthy, report.entries_copied) == (True, 0)
        assert await waiting(client) == []


async def test_a_bookie_that_returns_in_time_costs_no_copy() -> None:
    slow = HealingConfig(lost_bookie_delay_s=3600.0)
    async with cluster(bookies=4) as c, healing(c, slow) as client:
        ledger = await write(client, 10)
        before = await members(client, ledger)
        number = c.bookies.index(sorted(before)[0])
        await c.kill(number)
        await eventually(lambda: is_gone(client, sorted(before)[0]), "gone")
        await c.restart(number)
        await eventually(lambda: there(client, sorted(before)[0]), "back")
        assert await members(client, ledger) == before
        assert [found async for found in tree(client).marked()] == []


async def looked(worker: Replicator) -> bool:
    return worker.rounds > 0


async def is_gone(client: Client, bookie: str) -> bool:
    return (await client.services.store.bookies()).find(bookie) is None


async def there(client: Client, bookie: str) -> bool:
    return not await is_gone(client, bookie)


async def test_a_ledger_that_no_bookie_can_take_waits_with_the_reason_until_one_comes() -> None:
    async with cluster(bookies=3) as c, healing(c) as client:
        ledger = await write(client, 100)
        gone = c.bookies[0]
        await c.kill(0)
        await eventually(lambda: waiting(client), "waiting")
        (found,) = await waiting(client)
        assert (found.ledger, found.survivors) == (ledger, 2)
        assert [reason.why for reason in found.reasons] == [Why.NO_BOOKIE]
        assert gone in found.reasons[0].text
        await c.add()

        async def healed() -> bool:
            return gone not in await members(client, ledger) and not await waiting(client)

        await eventually(healed, "healed")


async def test_a_writer_that_lives_is_not_fenced() -> None:
    async with cluster(bookies=3) as c, healing(c) as client, await client.create(ensemble=(3, 3, 2)) as writer:
        await writer.append(b"one")
        await c.kill(0)

        async def attempt(after_ms: int) -> int:
            """The time of the replicator's next attempt, while the writer goes on."""
            async with asyncio.timeout(30):
                while True:
                    await writer.append(b"more")
                    for found in await waiting(client):
                        assert [reason.why for reason in found.reasons] in ([Why.WRITER_LIVES], [Why.NO_BOOKIE])
                        if found.at_ms > after_ms:
                            return found.at_ms

        first = await attempt(0)
        second = await attempt(first)
        await attempt(second)
        metadata = (await client.services.store.read_ledger(writer.ledger_id)).metadata
        assert not metadata.closed
        await writer.append(b"last")


async def test_an_open_ledger_whose_writer_died_is_recovered_and_copied() -> None:
    async with cluster(bookies=4) as c, healing(c) as client, c.client() as other:
        writer = await other.create(ensemble=(3, 3, 2))
        await writer.append_many([b"x" * 100] * 50)
        ledger = writer.ledger_id
        gone = sorted(await members(client, ledger))[0]
        await other.services.pool.close()  # its process died
        await c.kill(c.bookies.index(gone))

        async def healed() -> bool:
            metadata = (await client.services.store.read_ledger(ledger)).metadata
            return metadata.closed and gone not in metadata.last_fragment.ensemble

        await eventually(healed, "healed")
        async with await client.open(ledger) as reader:
            assert reader.last_confirmed == 49


async def test_the_brake_holds_when_too_many_go_and_a_word_lets_it_go_on() -> None:
    patient = replace(QUICK, lost_bookie_delay_s=3.0)
    async with cluster(bookies=6) as c, healing(c, patient) as client:
        board, lost, named = HealingStatusStore(client.services.store), set(c.bookies[:3]), set[str]()
        ledgers: list[int] = []
        while not named >= lost:  # a bookie that no ledger names is nobody's loss
            ledgers.append(await write(client, 20))
            named |= await members(client, ledgers[-1])
        for number in (0, 1, 2):
            await c.kill(number)

        async def braked() -> bool:
            brake = await board.brake()
            return brake is not None and set(brake.bookies) == lost

        await eventually(braked, "braked")
        assert [found async for found in tree(client).marked()] == []
        assert set(await board.proceed()) == lost

        async def healed() -> bool:
            names = [await members(client, ledger) for ledger in ledgers]
            left = {w.ledger for w in await waiting(client)}
            return all(not (n & lost) or ledger in left for n, ledger in zip(names, ledgers, strict=True))

        await eventually(healed, "healed")


async def test_nothing_is_copied_while_it_is_switched_off() -> None:
    async with cluster(bookies=4) as c, healing(c) as client:
        ledger = await write(client, 20)
        await tree(client).enable(False)
        gone = sorted(await members(client, ledger))[0]
        await c.kill(c.bookies.index(gone))
        await eventually(lambda: is_gone(client, gone), "gone")
        await tree(client).mark(ledger, [gone], 0)
        async with TaskScope("another") as scope:
            other = Replicator(client, "other", QUICK)
            scope.spawn(other.run(), "replicator")
            await eventually(lambda: looked(other), "looked at the switch")
        assert gone in await members(client, ledger)
        await tree(client).enable(True)

        async def healed() -> bool:
            return gone not in await members(client, ledger)

        await eventually(healed, "healed")


async def test_the_brake_holds_when_all_bookies_of_a_rack_go() -> None:
    """Two of seven are not too many, unless they are one rack: as the map in metadata says, at any level."""
    patient = replace(QUICK, lost_bookie_delay_s=1.0)
    async with cluster(bookies=7) as c, healing(c, patient) as client:
        store, rack = client.services.store, c.bookies[:2]
        for bookie in c.bookies:
            path = "/west/r1" if bookie in rack else f"/east/{bookie}"
            await change_rack_map(store, partial(RackMap.placed, bookie=bookie, path=path))

        async def placed() -> bool:
            return all(client.services.bookies.topology.domain(b, "rack") for b in c.bookies)

        await eventually(placed, "placed")
        named = set[str]()
        while not named >= set(rack):
            named |= await members(client, await write(client, 20))
        for number in (0, 1):
            await c.kill(number)

        async def braked() -> bool:
            brake = await HealingStatusStore(store).brake()
            return brake is not None and brake.why == "all 2 bookies of region /west went within 1 s"

        await eventually(braked, "braked")
        assert [found async for found in tree(client).marked()] == []
