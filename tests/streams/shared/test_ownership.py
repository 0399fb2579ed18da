"""Streams whose metadata name a ledger that is another stream's: whatever acts for the first does nothing to it.

A tenant can write the metadata of its own streams, and servers that may do everything act by these.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.streams.maintain.test_janitor import clean, ledgers

from buckram.cluster import Client
from buckram.core.security.namespace_rules import LEDGER_NAMESPACE
from buckram.core.streams.metadata.head import HISTORY, Head, Segment, decode_head, encode_head
from buckram.core.streams.names import StreamName, owner_mark, owner_of
from buckram.errors import BuckramError, ForeignLedger
from buckram.metadata.records.foreign_references import (
    AGAIN_US,
    FOLDER,
    MOST_NOTES,
    ForeignNote,
    foreign_notes,
    leave_foreign_note,
)
from buckram.metadata.records.pending_audit_events import notes, turn_on
from buckram.namespace import Namespace
from buckram.streams.maintain.janitor import Janitor
from buckram.streams.maintain.offload import check_stream, offload_stream
from buckram.streams.maintain.segment_list_repair import adopt_ledgers
from buckram.streams.shared.ledgers import RETIRED, retiring_op, withdrawing_op
from buckram.streams.shared.shared_ledgers import release

RECORDS = [b"secret %d" % number for number in range(10)]


async def written(ns: Namespace, stream: str) -> Segment:
    """Make a stream with records; return the row of its only segment, which is sealed."""
    async with ns.writer(stream) as writer:
        for record in RECORDS:
            await writer.append(record)
    (row,) = [row async for row in ns.segments(stream)]
    return row


async def forged(ns: Namespace, stream: str, change: Callable[[Head], Head]) -> Head:
    """Write a head as no honest client would."""
    key = ns.store.layout.head(StreamName(ns.name, stream))
    found = await ns.store.keys.get(key)
    head = change(decode_head(key, found.value))
    await ns.store.keys.set(key, encode_head(head), found.version)
    return head


def parts_below(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.parquet"))


async def check_whole(client: Client, ns: Namespace) -> None:
    """The victim has all its records, and takes more."""
    assert [record.value async for record in ns.read("victim")][: len(RECORDS)] == RECORDS
    async with ns.writer("victim") as writer:
        await writer.append(b"more")


async def test_nobody_reads_a_segment_that_is_another_streams(client: Client, ns: Namespace) -> None:
    row = await written(ns, "victim")
    await written(ns, "bait")
    await forged(ns, "bait", lambda head: replace(head, tail=(row,)))
    with pytest.raises(ForeignLedger, match=f"bait.*ledger {row.ledger}"):
        [record async for record in ns.read("bait")]
    with pytest.raises(ForeignLedger):
        await ns.fork_stream("bait", "forked", offset=5)
    assert row.summary is not None
    earlier = replace(row, summary=row.summary._replace(first_append=row.summary.first_append - 1000))
    await forged(ns, "bait", lambda head: replace(head, tail=(earlier,)))
    with pytest.raises(ForeignLedger):
        await ns.fork_stream("bait", "forked", time=row.summary.last_append)
    await check_whole(client, ns)


async def test_what_is_found_is_told_once_an_hour_and_taken_back_by_a_check(client: Client, ns: Namespace) -> None:
    store = client.services.store
    await turn_on(store)
    row = await written(ns, "victim")
    await written(ns, "bait")
    honest = await forged(ns, "bait", lambda head: head)
    await forged(ns, "bait", lambda head: replace(head, tail=(row,)))
    for _ in range(2):
        with pytest.raises(ForeignLedger):
            [record async for record in ns.read("bait")]
    (note,) = await foreign_notes(store)
    assert (note.stream, note.uid, note.ledger, note.location) == (f"{ns.name}/bait", honest.uid, row.ledger, "")
    events = [event for event in (await notes(store)).values() if event is not None]
    assert [(event.action, event.what) for event in events] == [("found foreign", f"ledger {row.ledger}")]
    assert await check_stream(client, ns.store, StreamName(ns.name, "victim"))
    assert (await check_stream(client, ns.store, StreamName(ns.name, "bait"))).problems
    assert await foreign_notes(store) == [note], "nothing was mended"
    await forged(ns, "bait", lambda head: replace(head, tail=honest.tail))
    assert not (await check_stream(client, ns.store, StreamName(ns.name, "bait"))).problems
    assert await foreign_notes(store) == []


async def test_an_administrator_gives_a_stream_the_ledgers_of_nobody(client: Client, ns: Namespace) -> None:
    name, store = StreamName(ns.name, "bait"), client.services.store
    row, other = await written(ns, "bait"), await written(ns, "victim")
    head = await forged(ns, "bait", lambda head: head)
    found = await store.read_ledger(row.ledger)
    marks = owner_mark(name, head.uid, "segment")
    custom = {key: value for key, value in found.metadata.custom_metadata.items() if key not in marks}
    bare = replace(found.metadata, custom_metadata={**custom, "made-by": b"somebody"})
    await store.write_ledger(row.ledger, bare, found.version)
    await forged(ns, "bait", lambda head: replace(head, garbage=(other.ledger,)))
    with pytest.raises(ForeignLedger):
        [record async for record in ns.read("bait")]
    assert await adopt_ledgers(client, ns.store, name) == [row.ledger], "the other one is a stream's"
    assert await adopt_ledgers(client, ns.store, name) == []
    assert [record.value async for record in ns.read("bait")] == RECORDS
    marked = (await store.read_ledger(row.ledger)).metadata.custom_metadata
    assert (owner_of(marked), marked["made-by"]) == ((str(name), head.uid), b"somebody")
    async with client.create(custom_metadata={LEDGER_NAMESPACE: ns.name.encode()}) as writer:
        await writer.append(b"an application's own")
    await forged(ns, "bait", lambda head: replace(head, garbage=(writer.ledger_id,)))
    assert await adopt_ledgers(client, ns.store, name) == []


async def test_notes_are_few_and_the_oldest_give_way(client: Client) -> None:
    store = client.services.store
    for number in range(MOST_NOTES + 3):
        assert await leave_foreign_note(store, ForeignNote("n/s", "u", number, 1000 + number))
    kept = await foreign_notes(store)
    assert [note.ledger for note in kept] == list(range(MOST_NOTES + 2, 2, -1))
    newest = kept[0]
    assert not await leave_foreign_note(store, replace(newest, time_us=newest.time_us + AGAIN_US - 1))
    assert await leave_foreign_note(store, replace(newest, time_us=newest.time_us + AGAIN_US))
    assert (await foreign_notes(store))[0].time_us == newest.time_us + AGAIN_US
    await store.keys.create(f"{store.own}/{FOLDER}/no-note", b"junk")
    assert len(await foreign_notes(store)) == MOST_NOTES


async def test_the_one_who_opens_a_stream_fences_no_writer_of_another(client: Client, ns: Namespace) -> None:
    await ns.create("bait")
    async with ns.writer("victim") as writer:
        await writer.append(RECORDS[0])
        (row,) = [row async for row in ns.segments("victim")]
        await forged(ns, "bait", lambda head: replace(head, tail=(row,), next_number=1))
        with pytest.raises(ForeignLedger):
            await ns.writer("bait")
        await clean(client, seal_s=0)
        await ns.delete("bait")
        for record in RECORDS[1:]:
            await writer.append(record)
    await check_whole(client, ns)


@pytest.mark.parametrize("where", ["garbage", "tail", "table", "intent", "truncated"])
async def test_nobody_deletes_a_ledger_that_is_another_streams(client: Client, ns: Namespace, where: str) -> None:
    row = await written(ns, "victim")
    other = await written(ns, "bait")

    def change(head: Head) -> Head:
        match where:
            case "garbage":
                return replace(head, garbage=(row.ledger,))
            case "table":
                return replace(head, table=replace(row, number=0), producers=0)
            case "intent":
                return head
        return replace(head, tail=(row,))

    head = await forged(ns, "bait", change)
    if where == "intent":
        await ns.store.keys.multi([retiring_op(ns.store, head.uid, row.ledger, head.epoch, 1, RETIRED)])
    if where == "truncated":
        await ns.truncate("bait", before=row.end)
    await clean(client, retired_s=0)
    assert row.ledger in await ledgers(client)
    with suppress(BuckramError):
        async with ns.writer("bait"):  # It sweeps what a writer before it left.
            pass
    await ns.delete("bait")
    await clean(client)
    assert row.ledger in await ledgers(client)
    assert other.ledger not in await ledgers(client) or where in ("tail", "truncated")
    await check_whole(client, ns)


async def test_what_the_janitor_leaves_is_told(client: Client, ns: Namespace, caplog: pytest.LogCaptureFixture) -> None:
    row = await written(ns, "victim")
    await ns.create("bait")
    head = await forged(ns, "bait", lambda head: replace(head, garbage=(row.ledger,)))
    await Janitor(client).clean()
    assert any(head.uid in said and f"ledger {row.ledger}" in said for said in caplog.messages)
    assert (await ns.store.read(StreamName(ns.name, "bait"))).head.garbage == ()


async def test_the_last_fork_deletes_a_shared_ledger_also_if_it_was_stopped_in_between(
    client: Client, ns: Namespace
) -> None:
    row = await written(ns, "victim")
    await ns.fork_stream("victim", "forked", offset=len(RECORDS))
    uid = (await ns.info("forked")).uid
    assert [record.value async for record in ns.read("forked")] == RECORDS
    await ns.delete("victim")
    await clean(client)
    assert row.ledger in await ledgers(client)
    assert await release(ns.store, uid, row.ledger)  # And then it was killed.
    await ns.delete("forked")
    assert row.ledger not in await ledgers(client)
    assert await ns.store.keys.children(ns.store.layout.shared(uid)) == []


async def test_a_snapshot_that_is_anothers_is_not_restored(client: Client, ns: Namespace) -> None:
    async with ns.database("mine") as db, ns.database("theirs") as other:
        for one in (db, other):
            await one.lead()
            await one.execute("CREATE TABLE t (x)")
            await one.snapshot()
    name = StreamName(ns.name, "theirs")
    theirs = (await ns.store.read(name)).head.snapshots
    assert theirs
    await forged(ns, "mine", lambda head: replace(head, snapshots=theirs, earliest=theirs[-1].offset))
    with pytest.raises(BuckramError, match=f"ledger {theirs[-1].ledger}"):
        async with ns.database("mine", create=False) as db:
            await db.query("SELECT * FROM t", consistency="stale")
    async with ns.database("theirs", create=False) as other:
        assert (await other.query("SELECT count(*) FROM t", consistency="stale")).rows == [(0,)]


async def test_objects_read_fence_and_delete_only_ledgers_of_their_index(client: Client, ns: Namespace) -> None:
    async with ns.writer("victim") as writer, client.objects(ns.name) as objects:
        await writer.append(RECORDS[0])
        (row,) = [row async for row in ns.segments("victim")]
        await objects.put("mine", b"mine")
        with pytest.raises(ForeignLedger):
            await objects._readers.get(row.ledger)
        for command in (["begin", row.ledger, "a writer that is gone"], ["seal", row.ledger, 100]):
            await objects._index.execute(command)
            await objects.sweep()
        assert row.ledger not in await objects._index.look(lambda state: list(state.space.dead))
        for record in RECORDS[1:]:
            await writer.append(record)
        assert await objects.get("mine") == b"mine"
    await check_whole(client, ns)


async def test_a_row_that_names_files_of_another_stream_does_nothing_to_them(
    client: Client, ns: Namespace, tmp_path: Path
) -> None:
    await written(ns, "victim")
    await written(ns, "bait")
    await offload_stream(client, ns.store, StreamName(ns.name, "victim"), to=str(tmp_path))
    (row,) = [row async for row in ns.segments("victim")]
    assert row.kind == HISTORY
    files = parts_below(tmp_path)
    assert files
    head = await forged(ns, "bait", lambda head: replace(head, tail=(row,)))
    with pytest.raises(ForeignLedger, match=str(tmp_path)):
        [record async for record in ns.read("bait")]
    assert len((await check_stream(client, ns.store, StreamName(ns.name, "bait"))).problems) == 1
    assert row.offloaded is not None
    claimed = withdrawing_op(ns.store, head.uid, row.ledger, row.offloaded.location, 0, 1)
    await ns.store.keys.multi([claimed])
    await clean(client, retired_s=0, bulk_age_s=0)
    await ns.delete("bait")
    await clean(client)
    assert parts_below(tmp_path) == files
    assert [record.value async for record in ns.read("victim")] == RECORDS
