"""Kills: whatever moment a replication, a promotion or a reconciling is killed at, the next one completes it.

A mirror has each object whole or not at all, with all that is known of it; a machine's mirror has a state that the
source had; no ledger is left behind; and what was not copied is told exactly.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.replication.kit import Pair, pair
from tests.replication.mortal import Life, Work
from tests.state.machine.kit import Inventory
from tests.support.soak import some_of

from buckram import MirrorStream, Record, ReplicationRefused
from buckram.core.objects.index_difference import difference
from buckram.core.streams.names import OBJECTS_LOG, StreamName
from buckram.replication.object_copy import _kept, observed
from buckram.replication.promotion import Promotion, promote
from buckram.replication.reconciling import differences, reconcile
from buckram.replication.sides import Side
from buckram.replication.stream_copy import StreamCopy
from buckram.runtime.net.pace import Pace
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.types import LedgerId

MIB = 1024 * 1024
EACH = 3
"""So many moments are tested in one run, others with each commit."""
LARGE = os.urandom(MIB + 7)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles that all write take the index from each other after a tenth of the time."""
    monkeypatch.setattr("buckram.state.objects.index_client.TURN_S", 0.1)
    monkeypatch.setattr("buckram.replication.object_copy._LOOK_S", 0.05)


# -- what there is, and what has to hold ------------------------------------------------------------------


async def make(both: Pair, space: str) -> None:
    """A namespace with objects of all sizes, a machine with a snapshot, and a stream, in the first cluster."""
    for side in (both.a, both.b):
        await side.client.namespaces.create(space, ensemble="1/1/1")
    async with both.a.client.objects(space) as objects:
        await objects.put("small", b"1", metadata={"kind": "small"})
        await objects.put("large", LARGE)
        await objects.put("deep/down", b"22", expires_s=3600)
        await objects.mkdirs("kept")
    await execute(both.a, space, 1, 2)
    async with both.a.client.namespace(space).writer("orders") as writer:
        await writer.append_many([b"%d" % number for number in range(5)])


async def execute(side: Side, space: str, *counts: int) -> None:
    """Commands, with a snapshot before the last one."""
    async with side.client.namespace(space).machine("goods", Inventory) as machine:
        await machine.lead()
        for count in counts:
            if count == counts[-1]:
                await machine.snapshot()
            await machine.execute(["add", "bolt", count])


async def state(side: Side, space: str) -> tuple[list[int], int]:
    """The commands in the state of a replica there, and the offset of that state."""
    async with side.client.namespace(space).machine("goods", Inventory, create=False, stand=False) as machine:
        found = await machine.read(lambda state: list(state.applied), "stale", at_most_s=0)
        return [command[2] for command in found], machine.applied


async def applied_so_far(side: Side, space: str) -> list[int]:
    """The same of a log whose writer was killed: what it wrote last is readable once the next one has sealed it."""
    async with side.client.namespace(space).machine("goods", Inventory, create=False, stand=False) as machine:
        return [command[2] for command in await machine.read(lambda state: list(state.applied), "stale")]


async def records(side: Side, space: str) -> list[Record]:
    return [record async for record in side.client.namespace(space).read("orders")]


async def has(side: Side, space: str, stream: str) -> bool:
    return await side.client.namespace(space).exists(stream)


async def whole(source: Side, mirror: Side, space: str) -> list[str]:
    """Each object that the mirror has is one of the source's, to the byte; returns the names that it lacks."""
    if not await has(mirror, space, OBJECTS_LOG):
        async with source.client.objects(space) as objects:
            return sorted(info.name for info in await objects.list())
    async with AsyncExitStack() as stack:
        there, here = await observed(stack, source, space), await observed(stack, mirror, space)
        known = {info.name: info for info in await there.list()}
        present = await here.list()
        for info in present:
            assert info == known[info.name]
            assert await here.get(info.name) == await there.get(info.name)
        return sorted(known.keys() - {info.name for info in present})


async def same(source: Side, mirror: Side, space: str) -> None:
    assert await whole(source, mirror, space) == []
    async with AsyncExitStack() as stack:
        there, here = await observed(stack, source, space), await observed(stack, mirror, space)
        assert difference(await there.outline(), await here.outline(), source.now()).empty
    assert await state(mirror, space) == await state(source, space)
    assert await records(mirror, space) == await records(source, space)


async def used(stack: AsyncExitStack, side: Side, space: str) -> set[LedgerId]:
    """The ledgers that something of a namespace needs."""
    ns = side.client.namespace(space)
    found: set[LedgerId] = set()
    for name in await ns.list():
        head = (await side.streams.read(StreamName(space, name))).head
        found |= {row.ledger async for row in side.streams.segments(head)}
        found |= {row.ledger for row in head.snapshots or ()} | ({head.table.ledger} if head.table else set())
    if await has(side, space, OBJECTS_LOG):
        objects = await observed(stack, side, space)
        rows = await objects._index.look(lambda state: state.listed("", "", 1000))
        found |= {extent.ledger for _, row in rows for extent in row.extents}
    return found


async def ledgers(side: Side) -> set[LedgerId]:
    return set(await side.client.services.store.list_ledgers())


async def nothing_left(both: Pair, space: str, before: set[LedgerId]) -> None:
    """The mirror has no ledger but those that it needs, when janitor and sweeper have been there."""
    source, target = both.a, both.b
    uid = (await source.streams.read(StreamName(space, OBJECTS_LOG))).head.uid
    async with AsyncExitStack() as stack:
        mirror = await _kept(stack, target, space, uid, source.cluster)
        await mirror.sweep()
    report = await Janitor(target.client, JanitorSettings(grace_s=0, retired_s=0, bulk_age_s=0)).clean()
    assert report.problems == []
    async with AsyncExitStack() as stack:
        assert await ledgers(target) - before == await used(stack, target, space)


# -- moments ----------------------------------------------------------------------------------------------


class Moments:
    """Lives that end at chosen changes of some work, each with a namespace of its own."""

    def __init__(self, both: Pair, name: str) -> None:
        self.both, self._name, self._made = both, name, 0

    async def space(self) -> str:
        self._made += 1
        space = f"{self._name}{self._made}"
        await make(self.both, space)
        return space

    async def chosen(self, work: Work) -> Sequence[tuple[int, bool]]:
        """Some of the changes that the work makes, before and after each."""
        life = Life()
        assert not await life.run(self.both, work)
        assert life.changes > 3
        return some_of([(left, after) for left in range(1, life.changes + 1) for after in (False, True)], EACH)

    @asynccontextmanager
    async def killed(self, work: Work, moment: tuple[int, bool]) -> AsyncIterator[None]:
        life = Life(moment[0], after=moment[1])
        assert await life.run(self.both, work), f"it ended before change {moment}"
        try:
            yield
        except AssertionError as error:
            error.add_note(f"killed at change {moment[0]}, {'after' if moment[1] else 'before'} it was made")
            raise
        finally:
            await life.bury()


def copying(space: str) -> Work:
    async def work(both: Pair) -> None:
        found = await both.work(space)
        await found.once()

    return work


def copying_goods(space: str) -> Work:
    """The machine alone."""

    async def work(both: Pair) -> None:
        await StreamCopy(both.a, both.b, StreamName(space, "goods"), Pace(None)).run(follow=False)

    return work


def promoting(space: str) -> Work:
    async def work(both: Pair) -> None:
        await promote(both.b, space, both.a, force=True)

    return work


def reconciling(space: str) -> Work:
    async def work(both: Pair) -> None:
        await reconcile(both.a, both.b, space, await differences(both.a, both.b, space))

    return work


async def change(both: Pair, space: str) -> None:
    """What only the first cluster has: an object that was replaced, a new one, one less, a command, a record."""
    async with both.a.client.objects(space) as objects:
        await objects.put("small", b"again")
        await objects.put("late", b"4444")
        await objects.delete("deep/down")
    await execute(both.a, space, 3)
    async with both.a.client.namespace(space).writer("orders") as writer:
        await writer.append(b"late")


# -- tests ------------------------------------------------------------------------------------------------


async def test_a_copy_that_was_killed_is_completed_by_the_next_one() -> None:
    async with pair() as both:
        moments = Moments(both, "copy")
        for moment in await moments.chosen(copying(await moments.space())):
            space, before = await moments.space(), await ledgers(both.b)
            async with moments.killed(copying(space), moment):
                await whole(both.a, both.b, space)
                await both.copied(space)
                await same(both.a, both.b, space)
                await nothing_left(both, space, before)


async def test_a_second_copy_that_was_killed_leaves_each_object_as_it_was_or_as_it_is() -> None:
    async with pair() as both:
        moments = Moments(both, "again")

        async def prepared() -> str:
            space = await moments.space()
            await both.copied(space)
            await change(both, space)
            return space

        for moment in await moments.chosen(copying(await prepared())):
            before = await ledgers(both.b)
            space = await prepared()
            async with moments.killed(copying(space), moment):
                async with both.b.client.objects(space) as mirror:
                    found = {info.name: await mirror.get(info.name) for info in await mirror.list()}
                assert found.pop("small") in (b"1", b"again")
                assert found.pop("large") == LARGE
                assert found.pop("late", b"4444") == b"4444"
                assert found in ({}, {"deep/down": b"22"})
                applied = await applied_so_far(both.b, space)
                assert applied == [1, 2, 3][: len(applied)]
                await both.copied(space)
                await same(both.a, both.b, space)
                await nothing_left(both, space, before)


async def test_a_copy_that_was_overtaken_and_killed_leaves_the_state_that_was_there_or_a_newer_one() -> None:
    async with pair() as both:
        moments = Moments(both, "overtaken")

        async def prepared() -> str:
            space = await moments.space()
            await both.copied(space)
            for count in (3, 4, 5):
                await execute(both.a, space, count)
            ends = [(await side.streams.read(StreamName(space, "goods"))).head for side in (both.a, both.b)]
            assert ends[0].earliest > ends[1].end, "the source has truncated what the mirror lacks"
            return space

        for moment in await moments.chosen(copying(await prepared())):
            before = await ledgers(both.b)
            space = await prepared()
            async with moments.killed(copying(space), moment):
                applied = await applied_so_far(both.b, space)
                assert applied == [1, 2, 3, 4, 5][: len(applied)]
                assert applied, "it has no state"
                await both.copied(space)
                await same(both.a, both.b, space)
                await nothing_left(both, space, before)


async def test_the_copy_of_a_machine_that_was_overtaken_goes_on_wherever_it_was_killed() -> None:
    """After each change, in every run: it is one stream, so that there are few."""
    async with pair() as both:
        moments = Moments(both, "leaping")

        async def prepared() -> str:
            space = await moments.space()
            await copying_goods(space)(both)
            for count in (3, 4, 5):
                await execute(both.a, space, count)
            return space

        life = Life()
        assert not await life.run(both, copying_goods(await prepared()))
        assert life.changes > 3
        for change in range(1, life.changes + 1):
            space = await prepared()
            async with moments.killed(copying_goods(space), (change, True)):
                await copying_goods(space)(both)
                assert await state(both.b, space) == await state(both.a, space)


async def told(found: Promotion, both: Pair, space: str, lacking: Sequence[str], ends: dict[str, int]) -> None:
    """The promotion says what the mirror lacks, no more and no less."""
    if found.objects is not None:
        assert (sorted(found.objects.names), found.objects.missing) == (list(lacking), len(lacking))
    else:
        assert f"{space}/objects" in found.only_there
    streams = {one.stream.partition("/")[2]: one for one in found.streams}
    for name, end in ends.items():
        if name not in streams:
            assert f"{space}/{name}" in found.only_there
            continue
        one = streams[name]
        assert (one.source_end, one.missing, one.exact) == (end, end - one.end, True)
        assert (await both.b.streams.read(StreamName(space, name))).head.end == one.end


async def ends_of(side: Side, space: str) -> dict[str, int]:
    names = ("goods", "orders")
    return {name: (await side.streams.read(StreamName(space, name))).head.end for name in names}


async def refused_until_reconciled(both: Pair, space: str) -> None:
    """The old side takes nothing, and no replication goes on with it."""
    async with both.a.client.objects(space) as objects:
        with pytest.raises(MirrorStream, match="reconcile"):
            await objects.put("too late", b"")
    with pytest.raises(MirrorStream, match="reconcile"):
        await both.a.client.namespace(space).writer("orders")
    for back in (False, True):
        with pytest.raises(ReplicationRefused, match=f"buckram replicate reconcile {space}"):
            await both.work(space, back=back)


async def back_to_one(both: Pair, space: str, lacking: Sequence[str]) -> None:
    """The old side is reconciled: it is the mirror of the new one, and what only it had is aside."""
    try:
        await reconciling(space)(both)
    except ReplicationRefused as error:  # It was killed when all was done.
        if "reconciled already" not in str(error):
            raise
    await both.copied(space, back=True)
    if await has(both.b, space, OBJECTS_LOG):
        assert await whole(both.b, both.a, space) == []
    for name in await both.b.client.namespace(space).list():
        ends = [(await side.streams.read(StreamName(space, name))).head.end for side in (both.a, both.b)]
        assert ends[0] == ends[1] or name == OBJECTS_LOG, name  # Each cluster has a log of objects of its own.
    if lacking:
        async with both.a.client.objects(f"{space}.kept-1") as aside:
            assert sorted(info.name for info in await aside.list()) == list(lacking)


async def test_a_promotion_after_a_copy_was_killed_tells_exactly_what_was_not_copied() -> None:
    async with pair() as both:
        moments = Moments(both, "promoted")
        for moment in await moments.chosen(copying(await moments.space())):
            space = await moments.space()
            work = copying(space)
            async with moments.killed(work, moment):
                await whole(both.a, both.b, space)
                ends = await ends_of(both.a, space)
                if not await has(both.b, space, "orders") and not await has(both.b, space, OBJECTS_LOG):
                    continue  # Nothing is a mirror yet.
                found = await promote(both.b, space, both.a, force=True)
                # Only now, as what was written last before the kill is seen once the log is sealed.
                lacking = await whole(both.a, both.b, space)
                await told(found, both, space, lacking, ends)
                await refused_until_reconciled(both, space)
                async with both.b.client.objects(space) as objects:
                    await objects.put("new", b"on the new side")
                await back_to_one(both, space, lacking if found.objects is not None else [])


async def test_a_promotion_that_was_killed_is_completed_by_the_next_one() -> None:
    async with pair() as both:
        moments = Moments(both, "takes")

        async def prepared() -> str:
            space = await moments.space()
            await both.copied(space)
            await change(both, space)
            return space

        for moment in await moments.chosen(promoting(await prepared())):
            space = await prepared()
            ends = await ends_of(both.a, space)
            async with moments.killed(promoting(space), moment):
                found = await promote(both.b, space, both.a, force=True)
                assert found.epoch == 1
                await told(found, both, space, ["late", "small"], ends)
                await refused_until_reconciled(both, space)
                await back_to_one(both, space, ["late", "small"])


async def test_a_reconciling_that_was_killed_is_completed_by_the_next_one() -> None:
    async with pair() as both:
        moments = Moments(both, "settles")

        async def prepared() -> str:
            space = await moments.space()
            await both.copied(space)
            await change(both, space)
            await promote(both.b, space, None)
            return space

        for moment in await moments.chosen(reconciling(await prepared())):
            space = await prepared()
            only = await records(both.a, space)
            async with moments.killed(reconciling(space), moment):
                await back_to_one(both, space, ["late", "small"])
                kept = [record async for record in both.a.client.namespace(space).read("orders.kept-1")]
                assert kept == only[5:]
