"""Machines and databases: their mirrors are read there, begin with the source's snapshots, and lead when promoted."""

from __future__ import annotations

import asyncio

import pytest
from tests.replication.kit import SPACE, Pair, pair, records, space
from tests.state.machine.kit import Inventory
from tests.support.polling import eventually

from buckram import BuckramError, MirrorStream, SqlError, StateLost
from buckram.core.streams.names import StreamName
from buckram.replication.promotion import promote
from buckram.replication.reconciling import differences, reconcile
from buckram.replication.sides import Side
from buckram.replication.snapshot_copy import SnapshotCopy
from buckram.replication.stream_copy import StreamCopy
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope

GOODS = StreamName(SPACE, "goods")


async def fill(side: Side, *counts: int, snapshot: bool = False) -> None:
    async with space(side).machine("goods", Inventory) as machine:
        await machine.lead()
        for count in counts:
            await machine.execute(["add", "bolt", count])
        if snapshot:
            await machine.snapshot()


async def applied(side: Side, name: str = "goods") -> list[int]:
    """The counts of all commands in the state of a replica there."""
    async with space(side).machine(name, Inventory, create=False, stand=False) as machine:
        found = await machine.read(lambda state: list(state.applied), "stale", at_most_s=0)
    return [command[2] for command in found]


@pytest.mark.parametrize("last", [(), (7,)], ids=["all in the snapshot", "one behind it"])
async def test_commands_that_only_the_old_side_has_are_kept_with_their_state(last: tuple[int, ...]) -> None:
    """Its log has lost them since a snapshot was taken, so that no record of them could be kept."""
    async with pair() as both:
        await fill(both.a, 1, 2)
        await both.copied()
        for count in (3, 4, 5):
            await fill(both.a, count, snapshot=True)
        await fill(both.a, *last)
        old, new = [(await side.streams.read(GOODS)).head for side in (both.a, both.b)]
        assert old.earliest > new.end
        await promote(both.b, SPACE, both.a, force=True)
        found = await differences(both.a, both.b, SPACE)
        assert [(one.stream, one.kept, one.state) for one in found] == [("shop/goods", "shop/goods.kept-1", True)]
        await reconcile(both.a, both.b, SPACE, found)
        assert await applied(both.a, "goods.kept-1") == [1, 2, 3, 4, 5, *last]
        await both.copied(back=True)
        assert await applied(both.a) == [1, 2]


async def test_a_mirror_of_a_machine_is_read_there_and_led_after_the_promotion() -> None:
    async with pair() as both:
        await fill(both.a, 1, 2)
        await both.copied()
        assert await applied(both.b) == [1, 2]
        async with space(both.b).machine("goods", Inventory, create=False) as candidate, asyncio.timeout(30):
            for takeover in (False, True):
                with pytest.raises(MirrorStream, match="buckram replicate promote shop"):
                    await candidate.lead(takeover=takeover)
            with pytest.raises(MirrorStream):
                await candidate.execute(["add", "bolt", 9])
            assert await candidate.leader() == ""
            found = await promote(both.b, SPACE, both.a, force=True)
            assert [(one.stream, one.missing, one.exact) for one in found.streams] == [("shop/goods", 0, True)]
            await candidate.lead()
            assert await candidate.execute(["add", "bolt", 3]) == 6
        async with space(both.a).machine("goods", Inventory, create=False, stand=False) as old, asyncio.timeout(30):
            with pytest.raises(MirrorStream, match="reconcile"):
                await old.lead()
            assert await old.read(lambda state: state.counts["bolt"], "stale", at_most_s=0) == 3


async def test_snapshots_are_copied_and_truncate_the_mirror_as_the_source() -> None:
    async with pair() as both:
        await fill(both.a, 1, 2)
        await both.copied()
        for count in (3, 4, 5):
            await fill(both.a, count, snapshot=True)
            await both.copied()
        source, mirror = (await both.a.streams.read(GOODS)).head, (await both.b.streams.read(GOODS)).head
        assert source.snapshots is not None
        assert mirror.snapshots is not None
        places = [(row.offset, row.digest) for row in source.snapshots]
        assert [(row.offset, row.digest) for row in mirror.snapshots] == places
        assert mirror.earliest == source.earliest > 0
        assert {row.ledger for row in mirror.snapshots} <= {*await both.b.client.services.store.list_ledgers()}
        assert await applied(both.b) == [1, 2, 3, 4, 5]


async def test_a_mirror_that_was_overtaken_by_truncation_goes_on_at_a_snapshot() -> None:
    async with pair() as both:
        await fill(both.a, 1)
        await both.copied()
        async with space(both.b).machine("goods", Inventory, create=False) as replica, asyncio.timeout(60):
            for count in (2, 3, 4):
                await fill(both.a, count, snapshot=True)
            await both.copied()

            async def seen() -> bool:
                return await replica.read(lambda state: len(state.applied), "stale") == 4

            await eventually(seen)
        await fill(both.a, 5)
        await both.copied()
        assert await applied(both.b) == [1, 2, 3, 4, 5]
        await promote(both.b, SPACE, both.a, force=True)
        await fill(both.b, 6)
        assert await applied(both.b) == [1, 2, 3, 4, 5, 6]


async def test_a_mirror_that_was_overtaken_keeps_its_state_until_it_has_the_snapshot() -> None:
    async with pair() as both:
        await fill(both.a, 1)
        await both.copied()
        for count in (2, 3, 4):
            await fill(both.a, count, snapshot=True)
        await both.of_a.kill(0)
        with pytest.raises(BuckramError):
            async with asyncio.timeout(10):
                await StreamCopy(both.a, both.b, GOODS, Pace(None)).run(follow=False)
        assert await applied(both.b) == [1]
        (one,) = (await promote(both.b, SPACE, None)).streams
        assert not one.lacks_state
        await fill(both.b, 5)
        assert await applied(both.b) == [1, 5]


async def test_a_promotion_says_of_which_machine_it_has_no_state() -> None:
    async with pair() as both:
        await fill(both.a, 1)
        for count in (2, 3):
            await fill(both.a, count, snapshot=True)
        await both.work()
        await both.of_a.kill(0)
        run = asyncio.create_task(StreamCopy(both.a, both.b, GOODS, Pace(None)).run(follow=False))
        await eventually(lambda: space(both.b).exists("goods"))
        run.cancel()
        await asyncio.wait([run])
        (one,) = (await promote(both.b, SPACE, None)).streams
        assert one.lacks_state
        assert one.as_json()["lacks_state"]
        with pytest.raises(StateLost):
            await applied(both.b)


async def test_a_snapshot_is_not_published_before_its_records_are_there() -> None:
    async with pair() as both:
        await fill(both.a, 1, 2, snapshot=True)
        await fill(both.a, 3, snapshot=True)
        head = (await both.a.streams.read(GOODS)).head
        await both.copied()
        mirror = (await both.b.streams.read(GOODS)).head
        copy = SnapshotCopy(both.a, both.b, GOODS, head.uid, mirror.uid, Pace(None))
        await copy.once(head, 0)
        assert copy._newest == -1
        assert [row.offset for row in mirror.snapshots or ()] == [(head.snapshots or ())[-1].offset]


async def test_a_snapshot_that_cannot_be_read_now_leaves_no_ledger() -> None:
    async with pair() as both:
        await fill(both.a, 1)
        await both.copied()
        await fill(both.a, 2, snapshot=True)
        head = (await both.a.streams.read(GOODS)).head
        mirror = (await both.b.streams.read(GOODS)).head
        before = await both.b.client.services.store.list_ledgers()
        copy = SnapshotCopy(both.a, both.b, GOODS, head.uid, mirror.uid, Pace(None))
        await both.of_a.kill(0)
        with pytest.raises(BuckramError):
            await copy.once(head, head.end)
        assert await both.b.client.services.store.list_ledgers() == before


async def test_reconciling_keeps_the_commands_that_only_the_old_side_has() -> None:
    async with pair() as both:
        await fill(both.a, 1, 2)
        await both.copied()
        await fill(both.a, 3)
        await promote(both.b, SPACE, None)
        await fill(both.b, 4)
        found = await differences(both.a, both.b, SPACE)
        (one,) = found
        assert (one.stream, one.records > 0) == ("shop/goods", True)
        await reconcile(both.a, both.b, SPACE, found)
        assert len(await records(both.a, "goods.kept-1")) == one.records
        await both.copied(back=True)
        assert await applied(both.a) == await applied(both.b) == [1, 2, 4]


async def test_a_database_is_read_in_its_mirror_and_goes_on_there() -> None:
    async with pair() as both:
        async with space(both.a).database("main") as source:
            await source.lead()
            await source.execute("CREATE TABLE item (name TEXT)")
            await source.execute("INSERT INTO item VALUES ('one')", token="t-1")
            work = await both.work()
            async with TaskScope("run") as scope:
                scope.spawn(work.follow(), "follow")
                await eventually(lambda: _holds(both, 1))
                async with space(both.b).database("main", create=False) as mirror, asyncio.timeout(60):
                    await source.execute("INSERT INTO item VALUES ('two')")

                    async def seen() -> bool:
                        found = await mirror.query("SELECT count(*) FROM item", consistency="stale", at_most_s=0)
                        return found.rows[0][0] == 2

                    await eventually(seen)
                    with pytest.raises(MirrorStream):
                        await mirror.execute("INSERT INTO item VALUES ('no')")
                    with pytest.raises(MirrorStream):
                        await mirror.lead()
        found = await promote(both.b, SPACE, both.a, force=True)
        assert [(one.stream, one.missing) for one in found.streams] == [("shop/main", 0)]
        async with space(both.b).database("main", create=False) as led, asyncio.timeout(60):
            await led.lead()
            await led.execute("INSERT INTO item VALUES ('one')", token="t-1")  # It was committed on the other side.
            await led.execute("INSERT INTO item VALUES ('three')")
            names = await led.query("SELECT name FROM item ORDER BY rowid")
            assert [row[0] for row in names.rows] == ["one", "two", "three"]


async def _holds(both: Pair, rows: int) -> bool:
    if not await space(both.b).exists("main"):
        return False
    try:
        async with space(both.b).database("main", create=False, stand=False) as mirror:
            found = await mirror.query("SELECT count(*) FROM item", consistency="stale", at_most_s=0)
    except (StateLost, SqlError):  # There is no snapshot, or no table yet.
        return False
    return bool(found.rows[0][0] == rows)
