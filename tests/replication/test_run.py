"""Whole namespaces: which streams are copied, what is refused before anything is, and how far mirrors are."""

from __future__ import annotations

import pytest
from tests.replication.kit import ORDERS, SPACE, append, numbered, pair, records, space
from tests.support.polling import eventually

from buckram import BuckramError, InvalidArgument, NoSuchNamespace, NoSuchStream, ReplicationRefused
from buckram.core.streams.names import StreamName
from buckram.replication.lag import lag_of
from buckram.replication.run import Replication
from buckram.replication.sides import read_link
from buckram.replication.status import replicated_namespaces, show_replication, status_of
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.stats import PrometheusStats
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.read.lag import behind
from buckram.streams.read.locate import known_reach


async def test_all_streams_of_a_namespace_are_copied_with_its_settings() -> None:
    async with pair() as both:
        await both.a.namespaces.set(SPACE, retention_s=60.0, roll_bytes=12345678)
        for stream in ("orders", "refunds"):
            await append(both.a, numbered(0, 3), stream)
        work = await both.copied()
        assert sorted(map(str, work.streams)) == ["shop/orders", "shop/refunds"]
        policy = (await both.b.namespaces.get(SPACE)).policy
        assert policy == {"ensemble": "1/1/1", "retention_s": 60.0, "roll_bytes": 12345678}
        await both.a.namespaces.set(SPACE, retention_s=None)
        await both.copied()
        assert "retention_s" not in (await both.b.namespaces.get(SPACE)).policy


async def test_one_stream_that_cannot_be_copied_does_not_keep_the_others() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        await both.copied()
        await space(both.b).fork_stream("orders", "refunds")
        await append(both.a, numbered(0, 3), "refunds")
        await append(both.a, numbered(3, 5))
        work = await both.work()
        await work.once()
        assert "no replication made" in work.streams[StreamName(SPACE, "refunds")].trouble
        assert len(await records(both.b)) == 5


async def test_streams_that_are_made_later_are_copied_too() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        work = await both.work()
        async with TaskScope("run") as scope:
            scope.spawn(work.follow(), "follow")
            await append(both.a, numbered(0, 2), "late")

            async def there() -> bool:
                return await space(both.b).exists("late") and len(await records(both.b, "late")) == 2

            await eventually(there)


async def test_a_cut_to_either_side_loses_and_repeats_nothing() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 20))
        work = await both.work()
        async with TaskScope("run") as scope:
            scope.spawn(work.follow(), "follow")

            async def same() -> bool:
                try:
                    return await records(both.b) == await records(both.a)
                except BuckramError:
                    return False

            await eventually(same)
            for cut, number in ((both.of_b, 20), (both.of_a, 40)):
                async with space(both.a).writer("orders") as writer:
                    await writer.append_many(numbered(number, number + 10))
                    await cut.kill(0)
                    if cut is both.of_b:
                        await writer.append_many(numbered(number + 10, number + 20))
                    await cut.restart(0)
                    if cut is both.of_a:
                        await writer.append_many(numbered(number + 10, number + 20))
                await eventually(same, seconds=30)
        assert [record.value for record in await records(both.b)] == numbered(0, 60)


async def test_bad_input_is_refused_before_anything_is_copied() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        with pytest.raises(ReplicationRefused, match="the same cluster"):
            await Replication.prepare(both.a, both.a, [SPACE], pace=Pace(None))
        with pytest.raises(NoSuchNamespace):
            await both.work("nowhere")
        with pytest.raises(NoSuchStream):
            await both.work("shop/nothing")
        with pytest.raises(InvalidArgument):
            await Replication.prepare(both.a, both.b, [], pace=Pace(None))
        assert await space(both.b).list() == []
        await both.copied()
        with pytest.raises(ReplicationRefused, match="the target is the source"):
            await both.work(back=True)


async def test_a_mirror_is_not_copied_back_into_a_source_that_does_not_know_it() -> None:
    """The source has no record of the replication: the copy was killed before it wrote that, or it was restored."""
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        await both.copied()
        known = await read_link(both.a, SPACE)
        assert known is not None
        await both.a.streams.keys.delete(both.a.streams.layout.link(SPACE), known.version)
        with pytest.raises(ReplicationRefused, match="swap --from and --to"):
            await both.work(back=True)
        assert await read_link(both.a, SPACE) is None
        await both.copied()


async def test_lag_is_exact_where_both_sides_are_there() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 10))
        await both.copied()
        assert (await lag_of(both.a, both.b, ORDERS)).records == 0
        await append(both.a, [b"x" * 100] * 7)
        async with space(both.a).writer("orders") as writer:
            await writer.append_many([b"y" * 100] * 5)

            async def readable() -> bool:
                return len(await records(both.a)) == writer.next_offset

            await eventually(readable)
            lag = await lag_of(both.a, both.b, ORDERS)
            assert (lag.copied, lag.source_end, lag.records) == (10, 22, 12)
            assert lag.bytes is not None
            assert lag.bytes >= 700
            assert lag.seconds is not None
            assert 0 <= lag.seconds < 60
        alone = await lag_of(None, both.b, ORDERS)
        assert (alone.records, alone.bytes, alone.source_end) == (0, None, 10)  # As it was written down.
        assert alone.asked


async def test_a_lag_begins_with_the_record_that_lacks_and_not_with_its_segment() -> None:
    """A segment begins with the producers as of when its writer was opened; in a mirror these have no time."""
    async with pair() as both:
        for number in range(2):
            async with space(both.a).writer("orders") as writer:
                for sequence in (2 * number, 2 * number + 1):
                    await writer.append(b"x", producer="p", sequence=sequence)
        await both.copied()
        for side in (both.a, both.b):
            head = (await side.streams.read(ORDERS)).head
            reach = await known_reach(side.client, ORDERS, head)
            for record in await records(side):
                found = await behind(side.client, side.streams, ORDERS, head, reach, record.offset)
                assert found.since == record.append_time


async def test_the_state_is_seen_from_both_sides() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 10))
        await both.copied()
        await append(both.a, numbered(10, 14))
        for side, state in ((both.a, "source"), (both.b, "mirror")):
            assert await replicated_namespaces(side) == [SPACE]
            found = await status_of(side, SPACE)
            assert found is not None
            shown = found.as_json()
            assert (shown["state"], shown["other_reached"], shown["lag_records"]) == (state, True, 4)
        away = await status_of(both.b, SPACE, "sqlite:///nowhere/at/all.db")
        assert away is not None
        assert not away.reached
        assert await status_of(both.a, "default") is None


async def test_a_running_replication_has_metrics() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 10))
        work = await both.copied()
        await append(both.a, numbered(10, 14))
        stats = PrometheusStats()
        await show_replication(work, both.a, both.b, stats)
        text = stats.render().decode()
        assert 'buckram_replication_lag_records{stream="shop/orders"} 4.0' in text
        assert 'buckram_replication_copied_offset{stream="shop/orders"} 10.0' in text
