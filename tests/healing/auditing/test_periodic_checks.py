"""Placement that is broken is counted, the age of marks is known, and one record that nobody can read stops neither.

The periodic copies check, with real bookies: what a bookie lacks although it is there is found and mended.
When a periodic check is due.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import replace
from functools import partial

import pytest
from tests.healing.test_lost_bookie import QUICK, members, tree, write
from tests.support.polling import eventually
from tests.support.soak import soak

from buckram.cluster import Client
from buckram.core.ledgers.metadata import member_replaced
from buckram.core.placement.topology import RackMap
from buckram.errors import MalformedRecord
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.auditing.ledger_walk import Checked
from buckram.healing.auditing.periodic_checks import (
    COPIES,
    PLACEMENT,
    CopiesCheck,
    PeriodicChecks,
    PlacementCheck,
    due_in_s,
)
from buckram.healing.daemon import heal
from buckram.healing.overview import overview
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.topology import change_rack_map
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.testing import Cluster, cluster
from buckram.types import BookieId, Versioned


async def test_ledgers_that_break_their_placement_are_counted_and_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        unreadable, broken = await write(client, 5), await write(client, 5)
        store = client.services.store
        await tree(client).prepare()
        assert await PlacementCheck(client).run(lambda: True) == Checked(ledgers=2, complete=True)
        for bookie in c.bookies:  # all in one rack, and one rack more that holds nothing
            await change_rack_map(store, partial(RackMap.placed, bookie=bookie, path="/r1"))

        async def heard() -> bool:
            return client.services.bookies.topology.knows("rack")

        await eventually(heard, "heard")
        before = (await store.read_ledger(broken)).metadata
        read = store.read_ledger

        async def read_ledger(ledger: int, *rest: object) -> Versioned:
            if ledger == unreadable:
                raise MalformedRecord("a record that nobody can read")
            return await read(ledger)

        monkeypatch.setattr(store, "read_ledger", read_ledger)
        auditor = Auditor(client, "a", QUICK)
        auditor.elected = True
        await PeriodicChecks(client, auditor, QUICK)._step(86400.0, PLACEMENT)
        result = (await HealingStatusStore(store).checked())[PLACEMENT]
        assert (result["ledgers"], result["misplaced"], result["unreadable"]) == (2, 1, 1)
        assert await marked(client) == []
        assert (await store.read_ledger(broken)).metadata == before
        assert (await overview(store)).checks[PLACEMENT]["misplaced"] == 1


async def test_the_oldest_mark_is_named_and_one_that_nobody_can_read_hides_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        bad, young, old = [await write(client, 1) for _ in range(3)]
        store, marks = client.services.store, tree(client)
        await marks.prepare()
        now_ms = client.services.runtime.clock.wall_us() // 1000
        await marks.mark(bad, (), now_ms - 9_000_000)
        await marks.mark(young, (), now_ms)
        await marks.mark(old, (), now_ms - 7_200_000)
        key = marks.paths.mark(bad)
        await store.keys.set(key, b"\xff", (await store.keys.get(key)).version)
        found = await overview(store, now_ms)
        assert found.oldest is not None
        assert (found.oldest.ledger, round(found.oldest.age_s or 0)) == (old, 7200)
        assert [one.age_s is None for one in found.queue] == [True, False, False]
        auditor = Auditor(client, "a", QUICK)
        with caplog.at_level(logging.WARNING, "buckram.healing"):
            await PeriodicChecks(client, auditor, replace(QUICK, old_mark_s=600.0)).look_at_ages()
        assert f"1 ledgers have been marked for more than 600 s; ledger {old} for 72" in caplog.text


OFTEN = replace(QUICK, copies_check_interval_s=0.2, check_requests_per_s=0)


async def name_another(c: Cluster, client: Client, ledger: int) -> BookieId:
    """The record names a bookie that holds nothing of the ledger, as after a loss that nobody saw."""
    found = await client.services.store.read_ledger(ledger)
    inside = await members(client, ledger)
    other = next(bookie for bookie in c.bookies if bookie not in inside)
    changed = member_replaced(found.metadata, 0, sorted(inside)[0], other)
    await client.services.store.write_ledger(ledger, changed, found.version)
    return other


async def checked(client: Client) -> Checked:
    return await CopiesCheck(client, tree(client), Pace(None), Pace(None)).run(lambda: True)


async def marked(client: Client) -> list[int]:
    return [ledger async for ledger in tree(client).marked()]


async def test_a_copy_that_is_gone_on_a_live_bookie_is_found_and_mended() -> None:
    async with cluster(bookies=4) as c, c.client() as client:
        whole, lacking = await write(client, 20), await write(client, 20)
        other = await name_another(c, client, lacking)
        async with TaskScope("healing") as scope:
            scope.spawn(heal(client, "a", OFTEN), "heal")

            async def mended() -> bool:
                # The date comes after a complete run, and the mark goes when all copies are there.
                return await tree(client).last_run_ms(COPIES) >= 0 and await marked(client) == []

            await eventually(mended, "mended")
        assert other in await members(client, lacking)
        for ledger in (whole, lacking):
            report = await client.repair(ledger)
            assert (report.healthy, report.entries_copied) == (True, 0)


@pytest.mark.parametrize("ensemble", [(3, 3, 2), (3, 2, 2)])
async def test_only_ledgers_that_lack_entries_are_marked(ensemble: tuple[int, int, int]) -> None:
    async with cluster(bookies=4) as c, c.client() as client:
        await write(client, 20, ensemble)
        lacking = await write(client, 20, ensemble)
        await tree(client).prepare()
        other = await name_another(c, client, lacking)
        found = await checked(client)
        assert found == Checked(ledgers=2, marked=1, complete=True)
        mark = await tree(client).read_mark(lacking)
        assert mark is not None
        assert mark.replicas == (other,)
        assert await marked(client) == [lacking]


async def test_a_record_that_cannot_be_read_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(bookies=4) as c, c.client() as client:
        first, lacking = await write(client, 5), await write(client, 5)
        await tree(client).prepare()
        await name_another(c, client, lacking)
        store = client.services.store
        read = store.read_ledger

        async def read_ledger(ledger: int, *rest: object) -> Versioned:
            if ledger == first:
                raise MalformedRecord("a record that nobody can read")
            return await read(ledger)

        monkeypatch.setattr(store, "read_ledger", read_ledger)
        assert await checked(client) == Checked(ledgers=2, marked=1, unreadable=1, complete=True)


async def test_a_run_that_loses_its_auditor_leaves_no_date() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        await write(client, 5)
        auditor = Auditor(client, "a", OFTEN)
        await tree(client).prepare()
        assert await PeriodicChecks(client, auditor, OFTEN).check() == Checked()  # it is not elected
        assert await tree(client).last_run_ms(COPIES) == -1


async def test_a_new_auditor_waits_for_the_interval_since_the_last_run() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        now_ms = client.services.runtime.clock.wall_us() // 1000
        await tree(client).prepare()
        weekly = replace(QUICK, copies_check_interval_s=7 * 86400.0)
        auditor = Auditor(client, "b", weekly)
        auditor.elected = True
        checks = PeriodicChecks(client, auditor, weekly)
        await tree(client).set_last_run(COPIES, now_ms)
        assert await checks._step(weekly.copies_check_interval_s) > 86400
        assert await tree(client).last_run_ms(COPIES) == now_ms
        await tree(client).set_last_run(COPIES, now_ms + 86_400_000)  # by a clock that was ahead
        await checks._step(weekly.copies_check_interval_s)
        assert await tree(client).last_run_ms(COPIES) < now_ms + 86_400_000


async def test_the_check_asks_one_question_for_each_copy_and_its_time_is_told() -> None:
    """`make soak` does it with 20,000 ledgers; `LEDGERS=100000 pytest -s -k its_time` prints what the page says."""
    ledgers = int(os.environ.get("LEDGERS", soak(20_000, 60)))
    async with cluster(bookies=3, metadata="memory") as c, c.client() as client:
        for first in range(0, ledgers, 64):
            await asyncio.gather(*(_small(client) for _ in range(min(64, ledgers - first))))
        requests = Counting(None)
        began, cpu = time.monotonic(), time.process_time()
        found = await CopiesCheck(client, tree(client), requests, Pace(None)).run(lambda: True)
        took, used = time.monotonic() - began, time.process_time() - cpu
        assert (found.ledgers, found.marked, found.unknown, found.complete) == (ledgers, 0, 0, True)
        assert requests.count == 3 * ledgers
        print(f"\n{ledgers} ledgers: {took:.1f} s, {requests.count / took:.0f} questions/s, {used:.1f} s of CPU")


class Counting(Pace):
    """One without a limit that counts."""

    count = 0

    async def take(self, size: int) -> None:
        self.count += 1


async def _small(client: Client) -> None:
    async with client.create(ensemble="3/3/2") as writer:
        await writer.append(b"x")


async def test_a_record_that_speaks_of_entries_without_number_is_looked_at_in_no_time() -> None:
    """Its owner may write into it whatever he likes, and memory is not taken for what it claims."""
    async with cluster(bookies=3) as c, c.client() as client:
        ledger = await write(client, 20, (3, 2, 2))
        found = await client.services.store.read_ledger(ledger)
        claims = replace(found.metadata, last_entry=2**60)
        await client.services.store.write_ledger(ledger, claims, found.version)
        async with asyncio.timeout(20):
            assert (await checked(client)).marked == 1
        assert await marked(client) == [ledger]


@pytest.mark.parametrize(
    ("last_ms", "now_ms", "due_s"),
    [(-1, 5_000, 0.0), (5_000, 5_000, 10.0), (5_000, 9_000, 6.0), (5_000, 15_000, 0.0), (5_000, 99_000, 0.0)],
)
def test_a_check_is_due_an_interval_after_its_last_run(last_ms: int, now_ms: int, due_s: float) -> None:
    assert due_in_s(last_ms, now_ms, 10.0) == due_s


def test_a_date_ahead_of_the_clock_is_not_believed() -> None:
    assert due_in_s(5_001, 5_000, 10.0) == 0.0
