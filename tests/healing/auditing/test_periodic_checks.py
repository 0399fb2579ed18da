"""Placement that is broken is counted, the age of marks is known, and one record that nobody can read stops neither."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import pytest
from tests.healing.auditing.test_ledger_checks import marked
from tests.healing.test_lost_bookie import QUICK, tree, write
from tests.support.polling import eventually

from buckram.core.placement.topology import RackMap
from buckram.errors import MalformedRecord
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.auditing.ledger_checks import PlacementCheck
from buckram.healing.auditing.ledger_walk import Checked
from buckram.healing.auditing.periodic_checks import PLACEMENT, PeriodicChecks
from buckram.healing.overview import overview
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.topology import change_rack_map
from buckram.testing import cluster
from buckram.types import Versioned


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
