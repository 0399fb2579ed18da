"""Compaction of segments: readers see the same records, times and offsets, in the tail of the list and in pages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.segments_kit import rows_of, written

from buckram.cluster import Client
from buckram.core.streams import compaction as stream_compaction
from buckram.core.streams.compaction import CompactionRun, EntryRewriter, RunChanged, compacted, plan_runs
from buckram.core.streams.metadata import changes as stream_changes
from buckram.core.streams.metadata import head as stream_head
from buckram.core.streams.metadata.head import Head, Segment, Summary
from buckram.core.streams.names import StreamName
from buckram.errors import InvalidArgument, MetadataUnavailable
from buckram.namespace import Namespace
from buckram.streams.maintain import delete as stream_delete
from buckram.streams.maintain.compaction import compact_stream, copy_run, plan_compaction, replace_run
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.orphans import find_orphans
from buckram.streams.shared import metadata as stream_metadata
from buckram.streams.shared.ledgers import RETIRED, list_intents
from buckram.testing import Cluster

NAME = StreamName("shop", "s")


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stream_head, stream_changes, stream_compaction, stream_metadata, stream_delete):
        for name, size in (("PAGE_SEGMENTS", 4), ("_TAIL_MOST", 8)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, size)


async def ledgers(client: Client) -> list[int]:
    return [ledger async for ledger in client.list()]


async def clean(client: Client) -> None:
    await Janitor(client, JanitorSettings(grace_s=0, retired_s=0)).clean()


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_records_offsets_and_times_stay(client: Client, ns: Namespace, compression: str) -> None:
    before = await written(ns, 9, compression=compression)
    report = await compact_stream(client, ns.store, NAME)
    assert (report.segments, report.made, report.put_off) == (7, 1, 0)
    assert [record async for record in ns.read("s")] == before
    for record in before:
        assert await ns.get("s", record.offset) == record
    rows = await rows_of(ns)
    assert [row.end for row in rows] == [rows[1].base, rows[2].base, before[-1].offset + 1]
    for record in before[::3]:
        first = await anext(ns.read("s", start_time=record.append_time))
        assert first == next(r for r in before if r.append_time >= record.append_time)
    last = max(record.txid for record in before if record.txid is not None)
    for txid in range(last + 1):
        first = await anext(ns.read("s", start_txid=txid))
        assert first == next(r for r in before if (r.txid or 0) >= txid and r.txid is not None)


async def test_a_producer_is_known_after_compaction(client: Client, ns: Namespace) -> None:
    before = await written(ns, 8)
    assert (await compact_stream(client, ns.store, NAME)).made
    await clean(client)
    known = next(r for r in reversed(before) if r.producer == "p")
    assert known.sequence == 5
    async with ns.writer("s") as writer:
        assert await writer.append(b"again", producer="p", sequence=5) == known.offset
        assert await writer.append(b"new", producer="p", sequence=6) == before[-1].offset + 1


async def test_old_ledgers_stay_until_the_janitor_takes_them(client: Client, ns: Namespace) -> None:
    before = await written(ns, 6)
    old = await ledgers(client)
    reader = ns.read("s")
    assert await anext(reader) == before[0]
    await compact_stream(client, ns.store, NAME)
    assert set(old) < set(await ledgers(client))
    assert await find_orphans(client, ns.store) == []
    uid = (await ns.info("s")).uid
    assert {intent.purpose for intent in await list_intents(ns.store, uid)} == {RETIRED}
    await Janitor(client, JanitorSettings(grace_s=0)).clean()
    assert set(old) < set(await ledgers(client))
    await clean(client)
    assert await ledgers(client) == sorted(row.ledger for row in await rows_of(ns))
    assert await list_intents(ns.store, uid) == []
    assert [record async for record in reader] == before[1:]


async def test_compacting_again_changes_nothing(client: Client, ns: Namespace) -> None:
    await written(ns, 6)
    assert (await compact_stream(client, ns.store, NAME)).made == 1
    assert (await compact_stream(client, ns.store, NAME)).made == 0
    work = await plan_compaction(ns.store, NAME)
    assert work.runs == ()


async def test_two_compactions_at_once_and_a_lost_reply(client: Client, ns: Namespace) -> None:
    before = await written(ns, 6)
    work = await plan_compaction(ns.store, NAME)
    first, second = [await copy_run(client, ns.store, work, work.runs[0]) for _ in range(2)]
    assert await replace_run(client, ns.store, work, first)
    assert await replace_run(client, ns.store, work, first)  # This repeats the call, as after a lost reply.
    assert not await replace_run(client, ns.store, work, second)
    assert second.row.ledger not in await ledgers(client)
    assert [record async for record in ns.read("s")] == before


async def test_compaction_does_not_disturb_a_live_writer(client: Client, ns: Namespace) -> None:
    before = await written(ns, 5)
    async with ns.writer("s") as writer:
        offset = await writer.append(b"live")
        work = await plan_compaction(ns.store, NAME)
        copied = [await copy_run(client, ns.store, work, run) for run in work.runs]
        await writer.roll()
        assert await writer.append(b"live") == offset + 1
        assert [await replace_run(client, ns.store, work, copy) for copy in copied] == [True] * len(copied)
        await writer.roll()
        assert await writer.append(b"live") == offset + 2
    found = [record async for record in ns.read("s")]
    assert found[: len(before)] == before
    assert [record.offset for record in found] == list(range(offset + 3))


async def test_a_run_that_is_truncated_meanwhile_is_put_off(client: Client, ns: Namespace) -> None:
    before = await written(ns, 6)
    work = await plan_compaction(ns.store, NAME)
    (run,) = work.runs
    copy = await copy_run(client, ns.store, work, run)
    await ns.truncate("s", before=run.end)
    assert not await replace_run(client, ns.store, work, copy)
    await clean(client)
    assert [record async for record in ns.read("s")] == before[run.end :]
    assert await ledgers(client) == sorted(row.ledger for row in await rows_of(ns))


async def test_compacted_segments_can_be_truncated(client: Client, ns: Namespace) -> None:
    before = await written(ns, 6)
    await ns.truncate("s", before=2)
    await compact_stream(client, ns.store, NAME)
    assert [record async for record in ns.read("s")] == before[2:]
    await ns.truncate("s", before=(await rows_of(ns))[0].end)
    await clean(client)
    assert await ledgers(client) == sorted(row.ledger for row in await rows_of(ns))


@pytest.mark.usefixtures("small_pages")
async def test_compaction_in_pages_reaches_readers_with_cached_pages(
    client: Client, ns: Namespace, three_bookies: Cluster
) -> None:
    before = await written(ns, 20)
    async with three_bookies.client() as other:
        elsewhere = other.namespace("shop")
        assert [record async for record in elsewhere.read("s")] == before  # This fills its cache of pages.
        head = (await ns.store.read(NAME)).head
        assert head.paged >= 12
        report = await compact_stream(client, ns.store, NAME)
        assert report.made >= 4
        await clean(client)
        assert [record async for record in elsewhere.read("s")] == before
        for record in before[::5]:
            assert await elsewhere.get("s", record.offset) == record
        assert await ledgers(client) == sorted(row.ledger for row in await rows_of(elsewhere))
        assert await find_orphans(other, elsewhere.store) == []
        await elsewhere.truncate("s", before=(await rows_of(ns))[3].base + 1)
        await clean(other)
        assert await ledgers(client) == sorted(row.ledger for row in await rows_of(ns))
        await elsewhere.delete("s")
    assert await ledgers(client) == []


@pytest.mark.usefixtures("small_pages")
async def test_a_run_that_moves_to_a_page_is_replaced_there(client: Client, ns: Namespace) -> None:
    await written(ns, 6)
    work = await plan_compaction(ns.store, NAME)
    copies = [await copy_run(client, ns.store, work, run) for run in work.runs]
    for number in range(6):
        async with ns.writer("s") as writer:
            await writer.append(b"%d" % number)
    assert (await ns.store.read(NAME)).head.paged
    before = [record async for record in ns.read("s")]
    assert [await replace_run(client, ns.store, work, copy) for copy in copies] == [True] * len(copies)
    assert [await replace_run(client, ns.store, work, copy) for copy in copies] == [True] * len(copies)
    await clean(client)
    assert [record async for record in ns.read("s")] == before


async def test_the_janitor_deletes_the_copy_of_a_crashed_compaction(client: Client, ns: Namespace) -> None:
    before = await written(ns, 6)
    work = await plan_compaction(ns.store, NAME)
    await copy_run(client, ns.store, work, work.runs[0])  # The copy is not listed, as if the process had died.
    assert len(await find_orphans(client, ns.store, in_progress=True)) == 1
    await Janitor(client, JanitorSettings(grace_s=0, bulk_age_s=0)).clean()
    assert await ledgers(client) == sorted(row.ledger for row in await rows_of(ns))
    assert [record async for record in ns.read("s")] == before


async def test_a_failing_copy_leaves_no_ledger(client: Client, ns: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    await written(ns, 6)
    old = await ledgers(client)
    work = await plan_compaction(ns.store, NAME)

    def fail(self: EntryRewriter, payload: bytes) -> bytes:
        raise MetadataUnavailable("away")

    monkeypatch.setattr(EntryRewriter, "rewrite", fail)
    with pytest.raises(MetadataUnavailable):
        await copy_run(client, ns.store, work, work.runs[0])
    assert await ledgers(client) == old


async def test_a_target_that_is_too_small_is_refused(ns: Namespace) -> None:
    await ns.create("s")
    with pytest.raises(InvalidArgument, match="at least 4096"):
        await plan_compaction(ns.store, NAME, target_bytes=100)


# -- planning runs ----------------------------------------------------------------------------------------


def head_of(sizes: list[int], **changes: object) -> Head:
    rows, base = [], 0
    for number, size in enumerate(sizes):
        summary = Summary(10, 0, size, number * 10, number * 10 + 5, 0, 1, -1, -1)
        rows.append(Segment(number, 100 + number, base, 0, summary))
        base += 10
    return replace(Head("0" * 16, 0, tail=tuple(rows), end=base, next_number=len(rows)), **changes)  # type: ignore[arg-type]


def planned(head: Head, target: int, span: int | None = None) -> list[list[int]]:
    runs = plan_runs(head, head.tail, target_bytes=target, span_us=span)
    return [[row.number for row in run.rows] for run in runs]


def test_runs_join_neighbours_up_to_the_target() -> None:
    assert planned(head_of([10] * 7), 40) == [[0, 1, 2, 3], [4, 5, 6]]
    assert planned(head_of([10, 10, 90, 10, 10, 10]), 100) == [[0, 1], [3, 4, 5]]
    assert planned(head_of([10]), 100) == []


def test_a_large_segment_is_not_copied_for_a_few_small_ones() -> None:
    assert planned(head_of([400, 1, 1, 1]), 1000) == [[1, 2, 3]]
    assert planned(head_of([400, 1]), 1000) == []
    assert planned(head_of([1, 400, 399, 2]), 1000) == [[0, 1, 2, 3]]


def test_repeated_compaction_copies_each_byte_a_few_times() -> None:
    """Compaction runs after each new segment."""
    sizes: list[int] = []
    moved = 0
    for _ in range(2000):
        sizes.append(1)
        for run in reversed(planned(head_of(sizes), 10_000)):
            total = sum(sizes[run[0] : run[-1] + 1])
            moved += total
            sizes[run[0] : run[-1] + 1] = [total]
    assert moved <= 2000 * 12
    assert len(sizes) <= 30


def test_segments_that_must_not_be_compacted() -> None:
    assert planned(head_of([10] * 6, producers=2), 100) == [[0, 1], [3, 4, 5]]
    assert planned(head_of([10] * 6, earliest=25), 100) == [[2, 3, 4, 5]]
    assert planned(head_of([10] * 6), 100, span=25) == [[0, 1, 2], [3, 4, 5]]


def test_a_run_that_is_not_in_the_list_is_refused() -> None:
    head = head_of([10] * 6)
    (run,) = plan_runs(head, head.tail, target_bytes=100)
    row = Segment(0, 7, 0, 0, Summary(60, 5, 60, 0, 55, 0, 1, -1, -1))
    step = compacted("s", head, run, row, paged=False)
    assert step is not None
    assert step.head.tail == (row,)
    stream_changes.check_step("s", head, step.head)
    assert compacted("s", step.head, run, row, paged=False) is None
    other = replace(row, ledger=8)
    with pytest.raises(RunChanged, match="not in the list"):
        compacted("s", step.head, run, other, paged=False)
    with pytest.raises(RunChanged, match="truncated"):
        compacted("s", replace(head, earliest=30), run, row, paged=False)
    with pytest.raises(RunChanged, match="page"):
        compacted("s", head, run, row, paged=True)
    assert CompactionRun(run.rows[:2]).end == 20
