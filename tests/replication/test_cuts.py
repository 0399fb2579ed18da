"""Cuts between two clusters, and a promotion in the middle: objects, commands and records that were acknowledged are in
the mirror, or are told."""

from __future__ import annotations

import asyncio

import pytest
from tests.replication.kit import SPACE, Pair, pair, records, space
from tests.state.machine.kit import Inventory
from tests.support.polling import eventually

from buckram import BuckramError, HandleClosed, MirrorStream, ReplicationRefused
from buckram.core.streams.names import StreamName
from buckram.replication.promotion import promote
from buckram.replication.reconciling import differences, reconcile
from buckram.replication.sides import Side
from buckram.runtime.process.tasks import TaskScope


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.state.objects.index_client.TURN_S", 0.1)
    monkeypatch.setattr("buckram.replication.object_copy._LOOK_S", 0.05)


class Work:
    """Puts objects, executes commands and appends records in a cluster, and remembers what was acknowledged."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.objects: dict[str, bytes] = {}
        self.commands: list[int] = []
        self.records: list[bytes] = []

    async def do(self, count: int) -> None:
        """So many of each. Raises MirrorStream on a side that was superseded."""
        client = self._side.client
        async with (
            client.objects(SPACE) as objects,
            space(client).machine("goods", Inventory) as machine,
            space(client).writer("orders") as writer,
        ):
            await machine.lead()
            for _ in range(count):
                number = len(self.objects)
                name, value = f"n/{number:04d}", b"%d" % number * (number % 5)
                await objects.put(name, value)
                self.objects[name] = value
                await machine.execute(["add", "bolt", number])
                self.commands.append(number)
                await writer.append(value)
                self.records.append(value)

    async def until_superseded(self) -> None:
        while True:
            try:
                await self.do(10)
            except (MirrorStream, HandleClosed):
                return
            except BuckramError:  # Of a writer that was fenced: the next one says why.
                continue


async def objects_of(side: Side, namespace: str = SPACE) -> dict[str, bytes]:
    async with side.client.objects(namespace) as objects:
        return {info.name: await objects.get(info.name) for info in await objects.list()}


async def commands_of(side: Side) -> list[int]:
    async with space(side).machine("goods", Inventory, create=False, stand=False) as machine:
        found = await machine.read(lambda state: list(state.applied), "stale", at_most_s=0)
    return [command[2] for command in found]


async def is_same(both: Pair, done: Work) -> bool:
    try:
        return (
            [record.value for record in await records(both.b)] == done.records
            and await commands_of(both.b) == done.commands
            and await objects_of(both.b) == done.objects
        )
    except BuckramError:  # There is no mirror yet, or a cluster is away.
        return False


async def test_cuts_to_either_cluster_lose_and_repeat_nothing() -> None:
    async with pair() as both:
        done, work = Work(both.a), await both.work()
        async with TaskScope("run") as scope:
            scope.spawn(work.follow(), "follow")
            for cut in (both.of_b, both.of_a):
                await done.do(4)
                await cut.kill(0)
                if cut is both.of_b:
                    await done.do(4)
                await cut.restart(0)
                await done.do(4)
                await eventually(lambda: is_same(both, done), seconds=40)
        assert len(done.objects) == 20


async def test_a_promotion_in_the_middle_tells_what_was_acknowledged_and_is_not_there() -> None:
    async with pair() as both:
        done, work = Work(both.a), await both.work()
        async with TaskScope("run") as scope:
            scope.spawn(_ended(work.follow()), "follow")
            writing = scope.spawn(done.until_superseded(), "work")

            async def under_way() -> bool:
                names = await space(both.b).list()
                if work.objects[SPACE].copy.objects <= 20 or not {"goods", "orders"} <= set(names):
                    return False
                goods = (await both.b.streams.read(StreamName(SPACE, "goods"))).head
                return goods.earliest == 0 or bool(goods.snapshots)

            await eventually(under_way, seconds=30)
            found = await promote(both.b, SPACE, both.a, force=True)
            async with asyncio.timeout(20):
                await writing
        assert found.objects is not None
        there = await objects_of(both.b)
        assert not there.keys() & set(found.objects.names)
        assert done.objects.keys() <= there.keys() | set(found.objects.names)
        assert {name: there[name] for name in there.keys() & done.objects.keys()} == {
            name: done.objects[name] for name in there.keys() & done.objects.keys()
        }
        for one in found.streams:
            end = (await both.a.streams.read(StreamName(*one.stream.split("/")))).head.end
            assert (one.source_end, one.missing, one.exact, one.lacks_state) == (end, end - one.end, True, False)
        copied = [record.value for record in await records(both.b)]
        assert copied == done.records[: len(copied)]
        assert len(copied) + next(one.missing or 0 for one in found.streams if "orders" in one.stream) >= len(
            done.records
        )
        commands = await commands_of(both.b)
        assert commands == done.commands[: len(commands)]
        await _goes_on(both, done, there)


async def _goes_on(both: Pair, done: Work, there: dict[str, bytes]) -> None:
    """The old side is refused until it is reconciled; then both have what the new side has, and the rest is aside."""
    for back in (False, True):
        with pytest.raises(ReplicationRefused, match="buckram replicate reconcile shop"):
            await both.work(back=back)
    await reconcile(both.a, both.b, SPACE, await differences(both.a, both.b, SPACE))
    async with both.b.client.objects(SPACE) as objects:
        await objects.put("new", b"on the new side")
    await both.copied(back=True)
    assert await objects_of(both.a) == {**there, "new": b"on the new side"}
    assert await commands_of(both.a) == await commands_of(both.b)
    assert await records(both.a) == await records(both.b)
    lost = done.objects.keys() - there.keys()
    if lost:
        aside = await objects_of(both.a, f"{SPACE}.kept-1")
        assert {name: aside[name] for name in lost} == {name: done.objects[name] for name in lost}


async def test_what_was_kept_aside_changes_sides_as_any_other_stream() -> None:
    async with pair() as both:
        done = Work(both.a)
        await done.do(1)
        await both.copied()
        await done.do(1)
        await promote(both.b, SPACE, both.a, force=True)
        await reconcile(both.a, both.b, SPACE, await differences(both.a, both.b, SPACE))
        await both.copied(back=True)
        kept = await records(both.a, "orders.kept-1")
        assert [record.value for record in kept] == done.records[1:]
        await promote(both.a, SPACE, both.b, force=True)
        await reconcile(both.b, both.a, SPACE, await differences(both.b, both.a, SPACE))
        await both.copied()
        assert await records(both.b, "orders.kept-1") == kept
        await promote(both.b, SPACE, both.a, force=True)
        with pytest.raises(MirrorStream, match="reconcile"):
            await space(both.a).writer("orders.kept-1")
        await reconcile(both.a, both.b, SPACE, await differences(both.a, both.b, SPACE))
        await both.copied(back=True)
        assert await records(both.a, "orders.kept-1") == kept == await records(both.b, "orders.kept-1")


async def _ended(work: object) -> None:
    try:
        await work  # type: ignore[misc]
    except ReplicationRefused:
        return
