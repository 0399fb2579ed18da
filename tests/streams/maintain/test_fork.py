"""Forks: both streams go on by themselves, and a ledger that they share goes when the last of them lets it go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.streams.maintain.fork_kit import (
    FORK,
    NAME,
    DyingStreams,
    clean,
    end_leases,
    files_below,
    ledgers,
    listed,
    records,
    three_and_open,
)
from tests.support.segments_kit import written

from buckram.cluster import Client
from buckram.core.streams.forks import ForkPlan
from buckram.core.streams.metadata import changes as stream_changes
from buckram.core.streams.metadata import head as stream_head
from buckram.core.streams.names import StreamId, StreamName
from buckram.errors import (
    BuckramError,
    InvalidArgument,
    KeyNotEmpty,
    MachineLog,
    MetadataUnavailable,
    NoSuchStream,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StreamError,
    StreamExists,
    WriterExists,
)
from buckram.namespace import Namespace
from buckram.streams.maintain import delete as stream_delete
from buckram.streams.maintain import fork as stream_fork
from buckram.streams.maintain import janitor as janitor_module
from buckram.streams.maintain.compaction import compact_stream, copy_run, plan_compaction, replace_run
from buckram.streams.maintain.delete import delete_incomplete
from buckram.streams.maintain.fork import StreamFork, fork_stream
from buckram.streams.maintain.history.segment_copy import SegmentCopy
from buckram.streams.maintain.offload import check_stream, offload_stream
from buckram.streams.maintain.orphans import find_orphans
from buckram.streams.maintain.truncate import is_lease_held
from buckram.streams.shared import ledgers as stream_ledgers
from buckram.streams.shared import metadata as stream_metadata
from buckram.streams.shared.ledgers import drop_ledger, let_go
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.shared_ledgers import holders, release, shared_by
from buckram.types import Create, KeyOp

# -- the thinnest whole -----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [13, 20, 30, 33])
async def test_both_streams_go_on_and_the_last_one_frees_the_space(client: Client, ns: Namespace, at: int) -> None:
    await three_and_open(ns)
    async with ns.writer("s") as live:
        for number in range(30, 36):
            await live.append(b"%d" % number)
        before = await records(ns, "s")
        made = await ns.fork_stream("s", "f", offset=at)
        assert (made.offset, made.earliest, made.shared_segments) == (at, 0, at // 10 if at <= 30 else 3)
        assert await records(ns, "f") == before[:at]
        assert await live.append(b"36") == 36  # the writer has not noticed
        async with ns.writer("f") as writer:
            assert await writer.append(b"own") == at
    assert [record.value for record in await records(ns, "s")] == [b"%d" % number for number in range(37)]
    assert [record.value for record in await records(ns, "f")] == [b"%d" % n for n in range(at)] + [b"own"]
    await ns.truncate("s", before=25)
    await ns.delete("s")
    assert [record.value for record in await records(ns, "f")] == [b"%d" % n for n in range(at)] + [b"own"]
    await clean(client)
    assert [record.value for record in await records(ns, "f")] == [b"%d" % n for n in range(at)] + [b"own"]
    assert await ledgers(client) == await listed(ns, "f")
    await ns.delete("f")
    await clean(client)
    assert await ledgers(client) == set()


async def test_the_fork_goes_first(client: Client, ns: Namespace) -> None:
    await three_and_open(ns)
    before, own = await records(ns, "s"), await ledgers(client)
    await ns.fork_stream("s", "f", offset=25)
    assert len(await ledgers(client) - own) == 1
    await ns.truncate("f", before=15)
    await ns.delete("f")
    assert await ledgers(client) == own
    assert await records(ns, "s") == before
    await ns.truncate("s", before=20)
    assert await ledgers(client) == await listed(ns, "s")
    assert len(await ledgers(client)) == 1


async def test_forks_of_forks(client: Client, ns: Namespace) -> None:
    await three_and_open(ns)
    before = await records(ns, "s")
    await ns.fork_stream("s", "f", offset=30)
    await ns.fork_stream("f", "g", offset=20)
    await ns.fork_stream("s", "h")
    await ns.delete("f")
    await ns.delete("s")
    assert await records(ns, "g") == before[:20]
    assert await records(ns, "h") == before
    await ns.delete("h")
    assert await ledgers(client) == await listed(ns, "g")
    await ns.delete("g")
    assert await ledgers(client) == set()


async def test_a_fork_at_the_earliest_offset_is_empty_and_begins_there(ns: Namespace) -> None:
    await three_and_open(ns)
    await ns.truncate("s", before=12)
    await ns.fork_stream("s", "f", offset=12)
    assert await records(ns, "f") == []
    async with ns.writer("f") as writer:
        assert await writer.append(b"x") == 12
    assert [record.offset for record in await records(ns, "f")] == [12]


async def test_a_fork_of_a_truncated_stream_begins_where_that_does(ns: Namespace) -> None:
    await three_and_open(ns)
    before = await records(ns, "s")
    await ns.truncate("s", before=12)
    made = await ns.fork_stream("s", "f", offset=28)
    assert made.earliest == 12
    assert await records(ns, "f") == before[12:28]


# -- what comes along -------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_records_of_every_kind_at_every_offset(client: Client, ns: Namespace, compression: str) -> None:
    before = await written(ns, 4, compression=compression)
    for at in range(len(before) + 1):
        await ns.fork_stream("s", "f", offset=at)
        assert await records(ns, "f") == before[:at]
        for record in before[:at:4]:
            assert await ns.get("f", record.offset) == record
            first = await anext(ns.read("f", start_time=record.append_time))
            assert first == next(r for r in before if r.append_time >= record.append_time)
        await ns.delete("f")
    await clean(client)
    assert await ledgers(client) == await listed(ns, "s")


async def test_producers_go_on_where_they_were(ns: Namespace) -> None:
    await ns.create("s")
    async with ns.writer("s") as writer:
        await writer.append_many([b"%d" % n for n in range(10)], producer="p", sequence=0)
        for at in (4, 10):
            made = await ns.fork_stream("s", f"f{at}", offset=at)
            assert made.producers
    for at in (4, 10):
        async with ns.writer(f"f{at}") as writer:
            assert await writer.append(b"again", producer="p", sequence=at - 1) == at - 1
            assert await writer.append(b"new", producer="p", sequence=at) == at


async def test_producers_of_a_segment_that_is_listed_for_them_only(client: Client, ns: Namespace) -> None:
    await ns.create("s")
    async with ns.writer("s") as writer:
        await writer.append_many([b"%d" % n for n in range(5)], producer="p", sequence=0)
    await publish_step(ns, "s", "job", 0)
    await ns.truncate("s", before=6)
    made = await ns.fork_stream("s", "f", offset=7)
    assert (made.earliest, made.producers) == (6, True)
    await ns.delete("s")
    async with ns.writer("f") as writer:
        assert await writer.append(b"again", producer="p", sequence=4) in (4, -1)
        assert await writer.append(b"new", producer="p", sequence=5) == 7
    await ns.delete("f")
    await clean(client)
    assert await ledgers(client) == set()


async def test_an_entry_is_cut_before_its_first_record_of_a_producer(ns: Namespace) -> None:
    await ns.create("s")
    async with ns.writer("s") as writer:
        await asyncio.gather(
            *(writer.append_nowait(b"%d" % n) for n in range(3)),
            writer.append_nowait(b"3", producer="p", sequence=0),
        )
    before = await records(ns, "s")
    (batch,) = [batch async for batch in ns.read("s").batches()]
    assert len(batch) == len(before) == 4
    for at in range(1, 4):
        made = await ns.fork_stream("s", f"f{at}", offset=at)
        assert made.producers
        assert await records(ns, f"f{at}") == before[:at]
        async with ns.writer(f"f{at}") as writer:
            assert await writer.append(b"new", producer="p", sequence=0) == at


async def test_no_older_table_than_that_of_the_copy_is_held(client: Client, ns: Namespace) -> None:
    await ns.create("s")
    async with ns.writer("s") as writer:
        await writer.append_many([b"%d" % n for n in range(5)], producer="p", sequence=0)
    async with ns.writer("s") as writer:
        await writer.append_many([b"%d" % n for n in range(5)], producer="p", sequence=5)
        await ns.truncate("s", before=5)
        made = await ns.fork_stream("s", "f", offset=8)
    assert (made.producers, made.shared_segments) == (True, 0)
    assert await shared_by(ns.store, (await ns.info("f")).uid) == []
    async with ns.writer("f") as writer:
        assert await writer.append(b"again", producer="p", sequence=7) == 7
    await ns.truncate("s", before=10)
    await clean(client)
    assert await ledgers(client) == await listed(ns, "s", "f")


async def test_producers_of_a_compacted_segment_are_not_known(client: Client, ns: Namespace) -> None:
    await ns.create("s")
    for part in range(4):
        async with ns.writer("s") as writer:
            await writer.append_many([b"x"] * 5, producer="p", sequence=5 * part)
    first = await ns.fork_stream("s", "first", offset=5)
    await compact_run(client, ns, first=1, segments=2)
    made = await ns.fork_stream("s", "f", offset=12)
    assert (first.producers, made.producers, made.shared_segments) == (True, False, 1)
    async with ns.writer("f") as writer:
        with pytest.raises(OutOfOrderSequence):
            await writer.append(b"again", producer="p", sequence=7)
        assert await writer.append(b"new", producer="p", sequence=12, start=12) == 12


async def test_a_fork_of_a_fork_that_does_not_know_its_producers_says_so(client: Client, ns: Namespace) -> None:
    await ns.create("s")
    for part in range(4):
        async with ns.writer("s") as writer:
            await writer.append_many([b"x"] * 5, producer="p", sequence=5 * part)
    await compact_run(client, ns, first=1, segments=2)
    assert not (await ns.fork_stream("s", "f", offset=15)).producers
    assert not (await ns.fork_stream("f", "again", offset=5)).producers
    async with ns.writer("f") as writer:
        await writer.append(b"x", producer="other", sequence=0)
    assert not (await ns.fork_stream("f", "later")).producers  # it has a table, and "p" is not in it


async def test_producers_of_history(client: Client, ns: Namespace, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("fsspec")
    await ns.create("s")
    for part in range(4):
        async with ns.writer("s") as writer:
            await writer.append_many([b"x"] * 5, producer="p", sequence=5 * part)
    before = await records(ns, "s")
    await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    for at in (10, 13):
        made = await ns.fork_stream("s", f"f{at}", offset=at)
        assert made.producers
        async with ns.writer(f"f{at}") as writer:
            assert await writer.append(b"again", producer="p", sequence=at - 1) == at - 1
            assert await writer.append(b"new", producer="p", sequence=at) == at
        assert (await records(ns, f"f{at}"))[:-1] == before[:at]
        await ns.delete(f"f{at}")
    await ns.delete("s")
    await clean(client)
    assert (await ledgers(client), files_below(tmp_path)) == (set(), [])


async def compact_run(client: Client, ns: Namespace, *, first: int, segments: int) -> None:
    work = await plan_compaction(ns.store, NAME)
    run = replace(work.runs[0], rows=work.runs[0].rows[first : first + segments])
    assert await replace_run(client, ns.store, work, await copy_run(client, ns.store, work, run))


async def publish_step(ns: Namespace, stream: str, application: str, version: int) -> int:
    step = await ns.bulk(stream, application=application, version=version)
    ledger = await step.create_ledger()
    await ledger.append_many([b"x", b"y"])
    return (await step.publish([await ledger.close()])).first_offset


async def test_steps_that_are_whole_in_the_fork_are_published_there(ns: Namespace) -> None:
    await ns.create("s")
    publish = partial(publish_step, ns)
    assert [await publish("s", "early", 0), await publish("s", "late", 0), await publish("s", "late", 1)] == [0, 2, 4]
    await ns.fork_stream("s", "f", offset=4)
    assert await publish("f", "early", 0) == 0
    assert await publish("f", "late", 1) == 4


async def test_policy_and_properties_are_the_sources_unless_said(ns: Namespace) -> None:
    await three_and_open(ns, retention_bytes=10**9)
    await ns.set_properties("s", {"owner": "billing"})
    await ns.fork_stream("s", "f", offset=5, compression="zstd")
    info = await ns.info("f")
    assert info.overrides == {"ensemble": "3/3/2", "retention_bytes": 10**9, "compression": "zstd"}
    assert info.properties == {"owner": "billing"}
    assert info.fork is not None
    assert (info.fork.source, info.fork.at, info.transactions) == ("shop/s", 5, {})


async def test_many_segments_in_pages(client: Client, ns: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stream_head, stream_changes, stream_metadata, stream_delete):
        for name, size in (("PAGE_SEGMENTS", 4), ("_TAIL_MOST", 8)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, size)
    await ns.create("s", ensemble="1/1/1")
    for number in range(19):
        step = await ns.bulk("s", application="job", version=number)
        ledger = await step.create_ledger()
        await ledger.append_many([b"a", b"b"])
        await step.publish([await ledger.close()])
    before = await records(ns, "s")
    await ns.truncate("s", before=11)
    for at in (38, 37, 13, 12):
        await ns.fork_stream("s", f"f{at}", offset=at)
        assert await records(ns, f"f{at}") == before[11:at]
    await ns.delete("s")
    assert await records(ns, "f37") == before[11:37]
    for at in (38, 37, 13, 12):
        await ns.delete(f"f{at}")
    assert await ledgers(client) == set()


@pytest.mark.parametrize("at_once", [1, 50])
async def test_history_is_copied_within_its_location(
    client: Client, ns: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("fsspec")
    monkeypatch.setattr(stream_fork, "_INTENTS_AT_ONCE", at_once)
    await three_and_open(ns, retention_bytes=10**9)
    before = await records(ns, "s")
    await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    await clean(client)
    for at in (25, 13):
        made = await ns.fork_stream("s", f"f{at}", offset=at)
        assert (made.shared_segments, await records(ns, f"f{at}")) == (0, before[:at])
        assert (await check_stream(client, ns.store, StreamName("shop", f"f{at}"))).problems == []
    await ns.delete("s")
    assert await records(ns, "f25") == before[:25]
    await ns.delete("f25")
    assert await records(ns, "f13") == before[:13]
    await ns.delete("f13")
    await clean(client)
    assert files_below(tmp_path) == []
    assert await ledgers(client) == set()


async def test_files_that_are_written_after_the_fork_was_given_up_are_deleted(
    client: Client, ns: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A janitor took the process for dead, and deleted what there was of the fork; the process went on."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("fsspec")
    await three_and_open(ns)
    await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    loop, write = asyncio.get_running_loop(), SegmentCopy._write_manifest

    async def give_up() -> None:
        head = (await ns.store.read(StreamName("shop", "f"))).head
        await delete_incomplete(client, ns.store, StreamName("shop", "f"), head.uid)

    def write_late(copy: SegmentCopy, data: bytes) -> None:
        with suppress(NoSuchStream):
            asyncio.run_coroutine_threadsafe(give_up(), loop).result()
        write(copy, data)

    monkeypatch.setattr(SegmentCopy, "_write_manifest", write_late)
    with pytest.raises(BuckramError):
        await ns.fork_stream("s", "f", offset=13)
    assert files_below(tmp_path / "shop" / "f") == []


# -- while others change the streams ----------------------------------------------------------------------


async def test_compaction_of_either_stream_leaves_the_other_one_whole(client: Client, ns: Namespace) -> None:
    before = await written(ns, 9)
    await ns.fork_stream("s", "f", offset=before[-1].offset)
    assert (await compact_stream(client, ns.store, NAME)).segments
    await clean(client)
    assert await records(ns, "f") == before[:-1]
    assert (await compact_stream(client, ns.store, FORK)).segments
    await clean(client)
    assert await records(ns, "s") == before
    assert await records(ns, "f") == before[:-1]
    assert await ledgers(client) == await listed(ns, "s", "f")


async def test_a_fork_of_a_list_that_changes_meanwhile(
    client: Client, ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await written(ns, 9)
    real = stream_fork._Forking._share
    calls = 0

    async def changing(self: stream_fork._Forking, plan: ForkPlan, version: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await compact_stream(client, ns.store, NAME)
        elif calls == 2:
            await ns.truncate("s", before=3)
        await real(self, plan, version)

    monkeypatch.setattr(stream_fork._Forking, "_share", changing)
    made = await ns.fork_stream("s", "f", offset=before[-1].offset)
    assert (calls, made.earliest) == (3, 3)
    await clean(client)
    assert await records(ns, "f") == before[3:-1]
    await ns.delete("s")
    await ns.delete("f")
    await clean(client)
    assert await ledgers(client) == set()


async def test_what_a_lost_reply_took_hold_of_is_let_go(
    client: Client, ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three_and_open(ns)
    before = await records(ns, "s")
    streams = DyingStreams(client, 1000)
    multi, lost = streams.dying.multi, 0

    async def losing(ops: Sequence[KeyOp]) -> None:
        nonlocal lost
        await multi(ops)
        if not lost and any(isinstance(op, Create) and "/shared/" in op.key for op in ops):
            lost += 1
            await ns.truncate("s", before=12)
            raise MetadataUnavailable("the reply was lost")

    monkeypatch.setattr(streams.dying, "multi", losing)
    made = await fork_stream(client, streams, NAME, FORK, at=20)
    assert (lost, made.earliest) == (1, 12)
    shared = await listed(ns, "f")
    assert await shared_by(ns.store, (await ns.info("f")).uid) == sorted(shared)
    await clean(client)
    assert await records(ns, "f") == before[12:20]
    assert await ledgers(client) == await listed(ns, "s", "f")


async def test_nobody_who_knows_nothing_of_forks_deletes_a_shared_ledger(client: Client, ns: Namespace) -> None:
    await three_and_open(ns)
    before = await records(ns, "s")
    await ns.fork_stream("s", "f", offset=20)
    for ledger in await listed(ns, "s") & await listed(ns, "f"):
        with pytest.raises(KeyNotEmpty):
            await drop_ledger(client, ns.store, StreamId(None, (await ns.info("f")).uid), ledger)
    assert await records(ns, "f") == before[:20]
    await ns.delete("s")
    assert await find_orphans(client, ns.store) == []
    assert (await clean(client)).orphans == 0
    assert await records(ns, "f") == before[:20]


async def test_a_ledger_is_held_under_the_names_of_its_streams(client: Client, ns: Namespace) -> None:
    await three_and_open(ns)
    await ns.fork_stream("s", "f", offset=20)
    shared = await listed(ns, "s") & await listed(ns, "f")
    assert len(shared) == 2
    for ledger in shared:
        key = await client.services.store.ledger_key(ledger)
        values = [(await ns.store.keys.get(f"{key}/{uid}")).value for uid in await holders(ns.store, ledger)]
        assert sorted(values) == [b"shop/f", b"shop/s"]


async def test_a_fork_that_is_completed_while_a_janitor_judges_it_stays(
    client: Client, ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three_and_open(ns)
    before = await records(ns, "s")
    complete, looks = stream_fork._Forking._complete, 0

    async def judged(self: stream_fork._Forking, plan: ForkPlan) -> StreamFork:
        made: list[StreamFork] = []

        async def held(streams: StreamStore, uid: str) -> bool:
            nonlocal looks
            found = await is_lease_held(streams, uid)
            looks += uid == self._uid
            if looks == 2 and not made:
                made.append(await complete(self, plan))  # after the janitor's last look
            return found

        monkeypatch.setattr(janitor_module, "is_lease_held", held)
        await end_leases(ns)
        await clean(client)
        return made[0]

    monkeypatch.setattr(stream_fork._Forking, "_complete", judged)
    await ns.fork_stream("s", "f", offset=25)
    assert looks == 2
    await clean(client)
    assert await records(ns, "f") == before[:25]


async def test_the_lease_of_a_writer_is_left_alone(
    client: Client, ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three_and_open(ns)
    complete = stream_fork._Forking._complete
    changes: list[str] = []
    async with AsyncExitStack() as stack:

        async def taken(self: stream_fork._Forking, plan: ForkPlan) -> StreamFork:
            made = await complete(self, plan)
            await stack.enter_async_context(ns.writer("f", takeover=True, name="early"))
            await ns.store.keys.get(ns.store.layout.lease(self._uid), lambda: changes.append("the lease"))
            return made

        monkeypatch.setattr(stream_fork._Forking, "_complete", taken)
        await ns.fork_stream("s", "f", offset=25)
        with pytest.raises(WriterExists, match="early"):
            await ns.writer("f")
        assert changes == []


async def test_whoever_finds_nobody_left_deletes_the_ledger(
    client: Client, ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three_and_open(ns)
    await ns.fork_stream("s", "f", offset=10)
    (shared,) = await listed(ns, "f")
    await ns.delete("s")

    async def ended_in_between(streams: StreamStore, uid: str, ledger: int) -> bool:
        await release(streams, uid, ledger)  # another process, which ended then
        return await release(streams, uid, ledger)

    monkeypatch.setattr(stream_ledgers, "release", ended_in_between)
    await let_go(client, ns.store, (await ns.info("f")).uid, shared)
    assert await ledgers(client) == set()


# -- bad input --------------------------------------------------------------------------------------------


async def test_bad_input_is_refused_and_leaves_nothing(client: Client, ns: Namespace) -> None:
    await three_and_open(ns)
    await client.namespaces.create("other")
    await ns.truncate("s", before=5)
    await ns.create_machine_log("log")
    for at, error, what in (
        (4, OffsetOutOfRange, "earliest is 5"),
        (31, OffsetOutOfRange, "next to be written is 30"),
        (-1, InvalidArgument, "from 0 on"),
    ):
        with pytest.raises(error, match=what):
            await ns.fork_stream("s", "f", offset=at)
    with pytest.raises(StreamExists):
        await ns.fork_stream("s", "s", offset=7)
    with pytest.raises(NoSuchStream):
        await ns.fork_stream("t", "f")
    with pytest.raises(MachineLog):
        await ns.fork_stream("log", "f")
    with pytest.raises(InvalidArgument, match="one namespace"):
        await ns.fork_stream("s", "other/f")
    with pytest.raises(InvalidArgument, match="unknown"):
        await ns.fork_stream("s", "f", colour="blue")
    assert await ns.list() == ["log", "s"]


async def test_a_fork_that_is_being_made_cannot_be_used_and_can_be_deleted(
    client: Client, ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three_and_open(ns)
    real = stream_fork._Forking._share

    async def meanwhile(self: stream_fork._Forking, plan: ForkPlan, version: int) -> None:
        await real(self, plan, version)
        assert not await ns.exists("f")
        with pytest.raises(StreamExists):
            await ns.create("f")
        with pytest.raises(BuckramError, match="fork"):
            await ns.writer("f")
        await clean(client)  # somebody is making it
        await ns.delete("f")

    monkeypatch.setattr(stream_fork._Forking, "_share", meanwhile)
    with pytest.raises((NoSuchStream, StreamError)):
        await ns.fork_stream("s", "f", offset=25)
    await clean(client)
    assert await ledgers(client) == await listed(ns, "s")
    await ns.delete("s")
    assert await ledgers(client) == set()
