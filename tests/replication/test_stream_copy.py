"""Copies of one stream: the same records at the same offsets, once, whatever ends them; and what goes with records."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.replication.kit import ORDERS, append, numbered, pair, records, space
from tests.support.polling import eventually

from buckram import Client, MirrorStream, OutOfOrderSequence, ReplicationRefused
from buckram.core.streams.metadata.changes import deleted
from buckram.core.streams.names import StreamName
from buckram.replication.stream_copy import StreamCopy
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.maintain.compaction import compact_stream
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.write.engine import StreamEngine


async def test_records_are_the_same_to_readers_with_all_their_fields() -> None:
    async with pair() as both:
        async with space(both.a).writer("orders") as writer:
            await writer.append_many([b"plain", None, b""])
            await writer.append(b"v", key=b"k", headers={"h": b"1"}, timestamp=5, txid=7, producer="p", sequence=0)
            await writer.roll()
            await writer.append_many([b"a", b"b"], keys=[b"k", None], producer="p", sequence=1)
        await both.orders.run(follow=False)
        found = await records(both.b)
        assert found == await records(both.a)
        assert len(found) == 6


async def test_times_of_a_bulk_step_are_those_that_readers_of_the_source_see() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        step = await space(both.a).bulk("orders", application="job", version=1)
        ledger = await step.create_ledger()
        await ledger.append_many(numbered(3, 6))
        await step.publish([await ledger.close()])
        await both.orders.run(follow=False)
        assert await records(both.b) == await records(both.a)


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_a_mirror_begins_where_the_source_begins_also_in_the_middle_of_an_entry(compression: str) -> None:
    async with pair() as both:
        await space(both.a).create("orders", compression=compression)
        async with space(both.a).writer("orders") as writer:
            await writer.append_many(numbered(0, 10), keys=[b"k"] * 10, producer="p", sequence=0)
        await space(both.a).truncate("orders", before=4)
        await both.orders.run(follow=False)
        found = await records(both.b)
        assert [record.offset for record in found] == list(range(4, 10))
        assert found == await records(both.a)
        assert (await space(both.b).info("orders")).earliest == 4


async def test_a_second_copy_goes_on_where_the_mirror_ends() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        await both.orders.run(follow=False)
        await append(both.a, numbered(5, 9))
        again = both.orders
        await again.run(follow=False)
        assert again.records == 4
        assert await records(both.b) == await records(both.a)


async def test_a_copy_that_is_cut_off_leaves_each_record_once() -> None:
    async with pair() as both:
        async with space(both.a).writer("orders") as writer:
            for first in range(0, 400, 10):
                await writer.append_many(numbered(first, first + 10))
            for stop in (40, 120, 260):
                cut = both.orders
                async with TaskScope("cut") as scope:
                    scope.spawn(cut.run(follow=True), "copy")

                    async def far(stop: int = stop) -> bool:
                        at = await both.b.streams.read(ORDERS) if await space(both.b).exists("orders") else None
                        return at is not None and at.head.open_segment is not None and stop >= 0

                    await eventually(far)  # The scope cancels the copy in the midst of it.
        await both.orders.run(follow=False)
        found = await records(both.b)
        assert found == await records(both.a)
        assert len(found) == 400


async def test_a_mirror_whose_ledger_broke_has_the_times_of_its_source() -> None:
    """What was in flight is sent again in another ledger, behind the producers that are known there."""
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        copying = both.orders
        async with TaskScope("copy") as scope:
            scope.spawn(copying.run(follow=True), "copy")

            async def reached(offset: int) -> bool:
                return copying.copied == offset

            await eventually(lambda: reached(3))
            await both.of_b.kill(0)
            for number in range(3, 7):
                async with space(both.a).writer("orders") as writer:
                    await writer.append(b"x", producer="p", sequence=number - 3)

            async def in_flight() -> bool:
                return len(copying._flight) == 4

            await eventually(in_flight)
            await both.of_b.restart(0)
            await eventually(lambda: reached(7), seconds=30)
        await both.copied()
        head = (await both.b.streams.read(ORDERS)).head
        assert head.open_segment is None
        assert await records(both.b) == await records(both.a)
        for row in head.tail:
            assert row.summary is not None
            assert row.summary.first_append <= row.summary.last_append


async def test_records_arrive_while_they_are_written() -> None:
    async with pair() as both:
        copying = both.orders
        async with space(both.a).writer("orders") as writer, TaskScope("copy") as scope:
            await writer.append(b"first")
            scope.spawn(copying.run(follow=True), "copy")
            for number in range(3):
                await writer.append_many(numbered(0, 20))
                if number == 1:
                    await writer.roll()

            async def all_there() -> bool:
                return copying.copied == writer.next_offset == len(await records(both.b))

            await eventually(all_there)
        assert await records(both.b) == await records(both.a)


async def test_producers_are_known_to_the_mirror_also_those_before_its_first_record() -> None:
    async with pair() as both:
        async with space(both.a).writer("orders") as writer:
            await writer.append_many(numbered(0, 5), producer="early", sequence=0)
        async with space(both.a).writer("orders") as writer:
            await writer.append_many(numbered(5, 8))
        await space(both.a).truncate("orders", before=6)
        await both.orders.run(follow=False)
        mirror = (await both.b.streams.read(ORDERS)).head
        assert mirror.producers is not None
        await _promote_alone(both)
        async with space(both.b).writer("orders") as writer:
            repeated = await writer.append_many(numbered(3, 5), producer="early", sequence=3)
            assert len(repeated) == 0
            with pytest.raises(OutOfOrderSequence):
                await writer.append(b"x", producer="early", sequence=9)


async def test_transactions_are_known_to_the_mirror_so_a_step_is_not_published_twice() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 2))
        step = await space(both.a).bulk("orders", application="job", version=4)
        ledger = await step.create_ledger()
        await ledger.append_many(numbered(2, 4))
        done = await step.publish([await ledger.close()])
        await both.orders.run(follow=False)
        await _promote_alone(both)
        again = await space(both.b).bulk("orders", application="job", version=4)
        assert not again.foreseen()
        assert await again.published() == done


async def test_settings_cursors_truncation_and_the_end_are_mirrored() -> None:
    async with pair() as both:
        await space(both.a).create("orders", properties={"owner": "us"}, retention_s=3600.0, ensemble="1/1/1")
        await append(both.a, numbered(0, 6))
        await space(both.a).move_cursor("orders", "reader", 4)
        await both.orders.run(follow=False)
        info = await space(both.b).info("orders")
        assert info.properties == {"owner": "us"}
        assert info.overrides == {"retention_s": 3600.0}  # An ensemble is about the bookies of one cluster.
        assert [(one.name, one.offset) for one in await space(both.b).cursors("orders")] == [("reader", 4)]

        await space(both.a).truncate("orders", before=3)
        await space(both.a).set_policy("orders", retention_s=None)
        async with space(both.a).writer("orders") as writer:
            await writer.end()
        await both.orders.run(follow=False)
        info = await space(both.b).info("orders")
        assert (info.earliest, info.ended, info.overrides) == (3, True, {})


async def test_compaction_of_the_source_changes_nothing() -> None:
    async with pair() as both:
        for first in range(0, 30, 10):
            await append(both.a, numbered(first, first + 10))
        await both.orders.run(follow=False)
        await compact_stream(both.a.client, both.a.streams, ORDERS)
        await append(both.a, numbered(30, 35))
        await both.orders.run(follow=False)
        assert await records(both.b) == await records(both.a)


async def test_nobody_else_writes_to_a_mirror() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 2))
        await both.orders.run(follow=False)
        for takeover in (False, True):
            with pytest.raises(MirrorStream, match="buckram replicate promote shop"):
                await space(both.b).writer("orders", takeover=takeover)
        step = await space(both.b).bulk("orders", application="job", version=1)
        with pytest.raises(MirrorStream):
            step.foreseen()


async def test_a_writer_that_takes_over_does_not_stop_a_copy() -> None:
    async with pair() as both:
        copying = both.orders
        async with space(both.a).writer("orders") as writer, TaskScope("copy") as scope:
            await writer.append(b"first")
            task = scope.spawn(copying.run(follow=True), "copy")

            async def open_there() -> bool:
                return await space(both.b).exists("orders") and (
                    (await both.b.streams.read(ORDERS)).head.open_segment is not None
                )

            await eventually(open_there)
            with pytest.raises(MirrorStream):
                await space(both.b).writer("orders", takeover=True)
            await writer.append(b"second")

            async def copied() -> bool:
                return len(await records(both.b)) == 2

            await eventually(copied)
            assert not task.done()


async def test_a_copy_that_another_one_overtook_goes_on_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one copies everything after this one has looked where the mirror ends, and before it writes."""
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        slow, quick = both.orders, both.orders
        opened = StreamCopy._writer

        async def late(self: StreamCopy) -> StreamEngine:
            if self is slow and not quick.records:
                await quick.run(follow=False)
                await append(both.a, numbered(3, 5))
            return await opened(self)

        monkeypatch.setattr(StreamCopy, "_writer", late)
        await slow.run(follow=False)
        assert (quick.records, slow.records) == (3, 2)
        assert await records(both.b) == await records(both.a)


async def test_a_stream_that_no_replication_made_is_refused() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 2))
        await append(both.b, numbered(0, 1))
        with pytest.raises(ReplicationRefused, match="no replication made"):
            await both.orders.run(follow=False)


async def test_a_stream_that_was_made_anew_is_refused() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 2))
        await both.orders.run(follow=False)
        await space(both.a).delete("orders")
        await append(both.a, numbered(0, 5))
        with pytest.raises(ReplicationRefused, match="created anew"):
            await both.orders.run(follow=False)


async def test_a_source_that_was_truncated_beyond_the_mirror_is_refused_unless_it_may_be_skipped() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 4))
        await both.orders.run(follow=False)
        await append(both.a, numbered(4, 10))
        await space(both.a).truncate("orders", before=7)
        with pytest.raises(ReplicationRefused, match="truncated the records 4 to 6"):
            await both.orders.run(follow=False)
        work = await both.work(skip_truncated=True)
        await work.once()
        found = await records(both.b)
        assert [record.offset for record in found] == [7, 8, 9]
        assert found == await records(both.a)


async def test_a_mirror_that_was_to_begin_anew_when_its_copy_was_stopped_does_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stopped_when_begun(
        client: Client, streams: StreamStore, name: StreamName, *, uid: str, **_: object
    ) -> None:
        await streams.change(name, partial(deleted, str(name)), uid=uid)
        raise InterruptedError

    async with pair() as both:
        await append(both.a, numbered(0, 4))
        await both.orders.run(follow=False)
        await append(both.a, numbered(4, 10))
        await space(both.a).truncate("orders", before=7)
        with monkeypatch.context() as patch:
            patch.setattr("buckram.replication.stream_copy.delete_stream", stopped_when_begun)
            work = await both.work(skip_truncated=True)
            with pytest.raises(InterruptedError):
                await work.once()
        work = await both.work(skip_truncated=True)
        await work.once()
        assert work.streams[ORDERS].trouble == ""
        assert await records(both.b) == await records(both.a)


async def test_a_rate_holds_a_copy_back() -> None:
    from buckram.replication.stream_copy import StreamCopy
    from buckram.runtime.net.pace import Pace

    async with pair() as both:
        await append(both.a, [b"x" * 10_000] * 10)
        began = asyncio.get_running_loop().time()
        await StreamCopy(both.a, both.b, ORDERS, Pace(300_000.0, burst_s=0.0)).run(follow=False)
        assert asyncio.get_running_loop().time() - began >= 0.3


async def _promote_alone(both: object) -> None:
    from tests.replication.kit import Pair

    from buckram.core.streams.metadata.mirrors import PROMOTED
    from buckram.replication.fencing import hand_over

    assert isinstance(both, Pair)
    head = (await both.b.streams.read(ORDERS)).head
    assert head.mirror is not None
    await hand_over(both.b, ORDERS, head, head.mirror._replace(state=PROMOTED, epoch=1))
