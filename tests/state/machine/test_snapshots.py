"""Snapshots on a real cluster: taken beside commands, published with their offset, verified, and what they free."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.state.machine.kit import Inventory
from tests.support.polling import until

from buckram.cluster import Client
from buckram.core.machine.fold import Fold
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.names import StreamName
from buckram.errors import MachineLog, OffsetTruncated, StateLost
from buckram.namespace import Namespace
from buckram.state.machine.freshness import load, tail
from buckram.state.machine.machine import ClassState
from buckram.state.machine.settings import MachineSettings
from buckram.state.machine.snapshots import LogHandle
from buckram.state.machine.snapshotter import Snapshotter
from buckram.streams.shared.ledgers import SNAPSHOT, list_intents
from buckram.types import LedgerId

NAME = StreamName("shop", "inventory")
SMALL = MachineSettings(snapshot_commands=50)


async def head_of(ns: Namespace) -> Head:
    return (await ns.store.read(NAME)).head


async def lose(client: Client, ledger: LedgerId) -> None:
    """A ledger is gone although it is still needed."""
    store = client.services.store
    await store.delete_ledger(ledger, (await store.read_ledger(ledger)).version)


async def test_snapshots_are_taken_while_commands_go_on_and_free_the_log(ns: Namespace) -> None:
    async with ns.machine("inventory", Inventory, settings=SMALL, roll_bytes=4096) as machine:
        await machine.lead()
        for _ in range(8):
            await asyncio.gather(*(machine.execute(["add", "bolt", 1]) for _ in range(50)))
        offset = await machine.snapshot()
        head = await head_of(ns)
        assert head.snapshots is not None
        assert [row.offset for row in head.snapshots][-1] == offset
        assert len(head.snapshots) == 2
        assert head.earliest == head.snapshots[0].offset > 0
        intents = await list_intents(ns.store, head.uid)
        # Those in the head, and at most one that left it with the last publication.
        assert 2 <= len([intent for intent in intents if intent.purpose == SNAPSHOT]) <= 3
    async with ns.machine("inventory", Inventory) as again:
        await again.lead()
        assert again.applied >= offset
        assert await again.read(lambda state: (state.counts, len(state.applied))) == ({"bolt": 400}, 400)


async def test_a_state_is_published_once(ns: Namespace) -> None:
    async with ns.machine("inventory", Inventory) as machine:
        await machine.lead()
        await machine.execute(["add", "bolt", 1])
        offset = await machine.snapshot()
        before = (await head_of(ns)).snapshots
        assert await machine.snapshot() == offset
        assert (await head_of(ns)).snapshots == before
        await machine.execute(["add", "bolt", 1])
        assert await machine.snapshot() > offset


async def test_a_result_is_known_after_a_restart_from_a_snapshot(ns: Namespace) -> None:
    async with ns.machine("inventory", Inventory) as machine:
        await machine.lead()
        token = await machine.token()
        assert await machine.execute(["add", "bolt", 3], token=token) == 3
        await machine.execute(["add", "bolt", 1])
        await machine.snapshot()
    async with ns.machine("inventory", Inventory) as again:
        await again.lead()
        assert await again.execute(["add", "bolt", 3], token=token) == 3
        assert await again.read(lambda state: state.counts) == {"bolt": 4}


async def test_a_damaged_snapshot_is_passed_over_loudly(
    client: Client, ns: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    async with ns.machine("inventory", Inventory) as machine:
        await machine.lead()
        for _ in range(3):
            await machine.execute(["add", "bolt", 1])
            await machine.snapshot()
    head = await head_of(ns)
    assert head.snapshots is not None
    older, newer = head.snapshots
    await lose(client, newer.ledger)
    async with ns.machine("inventory", Inventory) as again:
        await again.lead()
        assert await again.read(lambda state: state.counts) == {"bolt": 3}
        assert [error.offset for error in again.damaged_snapshots] == [newer.offset]
    assert f"the snapshot at offset {newer.offset}" in caplog.text
    await lose(client, older.ledger)
    with pytest.raises(StateLost, match="no snapshot can be read"):
        await ns.machine("inventory", Inventory)


async def test_a_follower_behind_the_log_begins_again_from_a_snapshot(client: Client, ns: Namespace) -> None:
    async with ns.machine("inventory", Inventory) as leader:
        await leader.lead()
        for _ in range(3):
            await leader.execute(["add", "bolt", 1])
            await leader.snapshot()
        state = ClassState(Inventory)
        fold = Fold("shop/inventory", state)
        place = LogHandle(client, ns.store, NAME, (await head_of(ns)).uid)
        with pytest.raises(OffsetTruncated):
            await tail(place, fold, lambda: None)
        assert (await load(place, fold)).damaged == []
        assert state.instance.counts == {"bolt": 3}
        assert fold.applied == leader.applied


async def test_only_the_machine_writes_and_truncates_its_log(ns: Namespace) -> None:
    async with ns.machine("inventory", Inventory):
        with pytest.raises(MachineLog):
            await ns.writer("inventory")
        with pytest.raises(MachineLog):
            await ns.truncate("inventory", before=0)
        with pytest.raises(MachineLog):
            await ns.bulk("inventory", application="job", version=1)


async def test_a_large_state_is_written_again_only_after_as_much_log(ns: Namespace) -> None:
    """Without that it would be written after every few records, for ever."""
    settings = MachineSettings(snapshot_bytes=4096, snapshot_commands=2**40)
    async with ns.machine("inventory", Inventory, settings=settings) as machine:
        await machine.lead()
        taken = list[int]()
        for number in range(300):
            await machine.execute(["add", f"{number:04}" + "x" * 200, 1])
            head = await head_of(ns)
            if head.snapshots and head.snapshots[-1].offset not in taken:
                taken.append(head.snapshots[-1].offset)
                size = head.snapshots[-1].bytes
        assert size > 3 * settings.snapshot_bytes
        # By the settings alone there would be some twenty.
        assert 3 <= len(taken) <= 8


def _at_rest(snapshotter: Snapshotter) -> bool:
    return not snapshotter._busy


async def test_a_machine_that_is_opened_again_and_again_does_not_read_ever_more_segments(ns: Namespace) -> None:
    for number in range(24):
        async with ns.machine("inventory", Inventory) as machine:
            await machine.lead()
            assert await machine.execute(["add", "bolt", 1]) == number + 1
            await until(partial(_at_rest, machine._replica._snapshotter))
    head = await head_of(ns)
    assert head.snapshots
    assert sum(segment.base >= head.snapshots[-1].offset for segment in head.tail) <= 12
