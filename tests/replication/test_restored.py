"""Mirrors whose source went back with a restore of its metadata: they stop and say so, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest
from tests.replication.kit import ORDERS, SPACE, Pair, append, numbered, pair, records, space
from tests.replication.restoring import backed_up, becomes, went_back
from tests.state.machine.kit import Inventory

from buckram import SourceWentBack, StoreWentBack
from buckram.core.streams.metadata.changes import HeadStep
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.names import OBJECTS_LOG, StreamName
from buckram.replication.lag import read_progress
from buckram.replication.promotion import promote
from buckram.replication.reconciling import differences, reconcile
from buckram.replication.run import Replication
from buckram.replication.status import status_of
from buckram.replication.stream_copy import StreamCopy
from buckram.runtime.net.pace import Pace
from buckram.streams.write.writer import engine_of


@pytest.fixture(autouse=True)
def quick_bookies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookies look soon whether the store went back."""
    monkeypatch.setattr("buckram.bookie.trust.witness.LOOK_S", 0.1)


async def troubles(both: Pair, **options: bool) -> dict[str, str]:
    """What cannot be copied, and why."""
    work = await both.work(**options)
    await work.once()
    found = {str(name): one.trouble for name, one in work.streams.items() if one.trouble}
    return found | {f"{name}/objects": one.trouble for name, one in work.objects.items() if one.trouble}


async def test_a_source_that_went_back_stops_its_stream_and_nothing_is_lost() -> None:
    """The whole of it: it stops, says since when and what to do; a promotion and a reconciling compare."""
    async with pair() as both:
        await append(both.a, numbered(0, 10))
        await append(both.a, numbered(0, 3), "quiet")
        async with both.a.client.objects(SPACE) as objects:
            await objects.put("early", b"1")
        await both.copied()
        made = await backed_up(both.of_a)
        await append(both.a, numbered(10, 20))
        async with both.a.client.objects(SPACE) as objects:
            await objects.put("late", b"2")
        work = await both.copied()
        assert not any(one.trouble for one in work.objects.values())
        acknowledged = await records(both.b)

        async with went_back(both, made) as both:
            await append(both.a, [b"other %d" % number for number in range(3)])
            async with both.a.client.objects(SPACE) as objects:
                await objects.put("other", b"3")
            before = time.time() * 1e6
            found = await troubles(both)
            assert set(found) == {"shop/orders", "shop/objects"}
            assert (
                "it ends at offset 13, and the mirror at 20; the records 10 to 19 are only in the"
                in found["shop/orders"]
            )
            assert "--keep-diverged" in found["shop/orders"]
            assert "buckram replicate promote shop" in found["shop/objects"]

            # Also when it has more records than were copied, which nothing but a comparison shows.
            await append(both.a, [b"other %d" % number for number in range(3, 20)])
            found = await troubles(both)
            assert "other records from offset 10 on than were copied up to 19" in found["shop/orders"]
            assert await records(both.b) == acknowledged
            async with both.b.client.objects(SPACE) as objects:
                assert await objects.get("late") == b"2"

            status = await status_of(both.b, SPACE)
            assert status is not None
            shown = {one["stream"]: one for one in json.loads(json.dumps(status.as_json()))["streams"]}
            assert shown["shop/orders"]["trouble"] == found["shop/orders"]
            assert before <= shown["shop/orders"]["trouble_since_us"] <= time.time() * 1e6
            assert "trouble" not in shown["shop/quiet"]
            assert status.objects is not None
            assert "went back" in status.objects.trouble

            # The mirror becomes the truth: the promotion says what differs, the reconciling keeps the other records.
            promoted = await promote(both.b, SPACE, both.a, force=True)
            told = {one.stream: (one.compared, one.differs, one.missing) for one in promoted.streams}
            assert told == {"shop/orders": (True, 10, 20), "shop/quiet": (True, None, 0)}
            only = await records(both.a)
            differing = {one.stream: one for one in await differences(both.a, both.b, SPACE)}
            assert (differing["shop/orders"].first, differing["shop/orders"].end) == (10, 30)
            assert differing["shop/orders"].others == 10
            assert differing["shop/quiet"].records == 0
            await reconcile(both.a, both.b, SPACE, list(differing.values()))
            assert await records(both.a, "orders.kept-1") == only[10:]
            await both.copied(back=True)
            assert await records(both.a) == acknowledged == await records(both.b)
            async with both.a.client.objects(f"{SPACE}.kept-1") as objects:
                assert await objects.get("other") == b"3"


async def test_what_only_the_mirror_has_is_kept_aside_when_it_begins_anew() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 4))
        async with both.a.client.objects(SPACE) as objects:
            await objects.put("early", b"1")
        await both.copied()
        made = await backed_up(both.of_a)
        await append(both.a, numbered(4, 8))
        async with both.a.client.objects(SPACE) as objects:
            await objects.put("late", b"2")
        await both.copied()
        acknowledged = await records(both.b)
        async with went_back(both, made) as both:
            await append(both.a, numbered(50, 60))
            assert set(await troubles(both)) == {"shop/orders", "shop/objects"}
            work = await Replication.prepare(both.a, both.b, [SPACE], pace=Pace(None), keep_diverged=True)
            await work.once()
            assert {one.trouble for one in (*work.streams.values(), *work.objects.values())} == {""}
            kept = work.streams[ORDERS].kept
            assert kept == f"shop/orders.kept-restore-{made.history.epoch + 1}"
            assert await records(both.b, kept.partition("/")[2]) == acknowledged[4:]
            assert await records(both.b) == await records(both.a)
            async with both.b.client.objects(work.objects[SPACE].kept) as objects:
                assert await objects.get("late") == b"2"
            async with both.b.client.objects(SPACE) as objects:
                assert [one.name for one in await objects.list()] == ["early"]
            assert await troubles(both) == {}
            said = await read_progress(both.b, (await both.b.streams.read(ORDERS)).head.uid)
            assert said is not None
            assert said.trouble == ""


async def test_what_the_source_reads_again_with_its_next_writer_is_not_kept_aside() -> None:
    """Its open segment has a record that the writer has not published before it died."""
    async with pair() as both:
        writer = await space(both.a).writer("orders")
        await writer.append_many(numbered(0, 4))
        made = await backed_up(both.of_a)
        await writer.append(b"record 4")
        await engine_of(writer).abandon()
        await append(both.a, numbered(5, 8))
        await both.copied()
        acknowledged = await records(both.b)
        async with went_back(both, made) as both:
            assert len(await records(both.a)) < 5
            (trouble,) = (await troubles(both)).values()
            assert "the next writer" in trouble
            work = await Replication.prepare(both.a, both.b, [SPACE], pace=Pace(None), keep_diverged=True)
            await work.once()
            assert (work.streams[ORDERS].trouble, work.streams[ORDERS].kept) == (trouble, "")
            async with space(both.a).writer("orders", takeover=True):
                pass
            work = await Replication.prepare(both.a, both.b, [SPACE], pace=Pace(None), keep_diverged=True)
            await work.once()
            assert await records(both.b, work.streams[ORDERS].kept.partition("/")[2]) == acknowledged[5:]
            assert await records(both.b) == await records(both.a) == acknowledged[:5]


async def test_a_restore_that_changed_nothing_below_the_mirror_is_passed_without_a_word() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 6))
        await append(both.a, numbered(0, 2), "gone")
        await space(both.a).truncate("gone", before=2)
        async with space(both.a).machine("goods", Inventory) as machine:
            await machine.lead()
            await machine.execute(["add", "bolt", 1])
            await machine.snapshot()
        async with both.a.client.objects(SPACE) as objects:
            await objects.put("early", b"1")
        await both.copied()
        made = await backed_up(both.of_a)
        async with both.a.client.objects(SPACE) as objects:  # It comes and goes, and is not in the backup.
            await objects.put("brief", b"0")
            await objects.delete("brief")
        await both.copied()
        async with went_back(both, made) as both:
            assert await troubles(both) == {}
            await append(both.a, numbered(6, 9))
            async with both.a.client.objects(SPACE) as objects:
                await objects.put("late", b"2")
            assert await troubles(both) == {}
            assert await records(both.b) == await records(both.a)
            mark = (await both.b.streams.read(ORDERS)).head.mark
            assert mark is not None
            assert (mark.offset, mark.epoch) == (9, made.history.epoch + 1)


async def test_where_nothing_can_be_compared_after_a_restore_it_stops() -> None:
    """Everything that was copied is truncated in the source, which has new records: nobody can say what they are."""
    async with pair() as both:
        await append(both.a, numbered(0, 4))
        await both.copied()
        made = await backed_up(both.of_a)
        await append(both.a, numbered(4, 8))
        await both.copied()
        async with went_back(both, made) as both:
            await append(both.a, numbered(50, 60))
            await space(both.a).truncate("orders", before=8)
            with pytest.raises(SourceWentBack, match="truncated the records below 8, so that what the mirror has"):
                await both.orders.run(follow=False)
            assert len(await records(both.b)) == 8


async def _without_mark(both: Pair, name: StreamName) -> None:
    def change(head: Head) -> HeadStep:
        return HeadStep(replace(head, mark=None))

    await both.b.streams.change(name, change)


async def test_the_mirror_of_an_older_release_is_compared_at_the_first_look() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 4))
        async with both.a.client.objects(SPACE) as objects:
            await objects.put("one", b"1")
        await both.copied()
        for name in (ORDERS, ORDERS._replace(stream=OBJECTS_LOG)):
            await _without_mark(both, name)
        await append(both.a, numbered(4, 6))
        assert await troubles(both) == {}
        mark = (await both.b.streams.read(ORDERS)).head.mark
        assert mark is not None
        assert mark.offset == 6

        await append(both.a, numbered(0, 6), "twin")
        await becomes(both.a, ORDERS, "twin")
        await _without_mark(both, ORDERS)
        with pytest.raises(SourceWentBack, match="other records from offset 0 on"):
            await both.orders.run(follow=False)


async def test_a_reconciling_compares_also_what_lies_below_the_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror that an older release copied on after its source had gone back: its last record is the same."""
    async with pair() as both:
        await append(both.a, numbered(0, 4))
        await both.copied("shop/orders")
        await space(both.a).fork_stream("orders", "branch", offset=2)
        await append(both.a, [b"other", b"other"], "branch")
        await becomes(both.a, ORDERS, "branch")
        await append(both.a, numbered(4, 6))

        async def unseen(self: StreamCopy, mirror: Head) -> Head:
            return mirror

        with monkeypatch.context() as patch:
            patch.setattr(StreamCopy, "_compared", unseen)
            await both.copied("shop/orders")
        assert (await records(both.b))[4:] == (await records(both.a))[4:]
        await promote(both.b, SPACE, both.a, force=True)
        found = await differences(both.a, both.b, SPACE)
        assert [(one.stream, one.first, one.end, one.others) for one in found] == [("shop/orders", 2, 6, 4)]


async def test_a_promotion_without_the_other_side_does_not_say_that_all_was_copied() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 2))
        await both.copied()
        found = await promote(both.b, SPACE, None)
        assert [(one.compared, one.missing) for one in found.streams] == [(False, 0)]


async def test_a_replication_that_runs_while_its_source_is_restored_ends() -> None:
    """Its client knows what was before; the next run compares."""
    async with pair() as both:
        await append(both.a, numbered(0, 2))
        made = await backed_up(both.of_a)
        work = await both.work()
        async with went_back(both, made), asyncio.timeout(20):
            with pytest.raises(StoreWentBack, match="connect again"):
                await work.follow()
