"""Export of sealed segments: each record is once in the files and in the table, whatever is interrupted or repeated."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyiceberg")

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.table import StaticTable
from tests.streams.maintain.test_offload import NAME, clean, files_below, plain, read
from tests.support.segments_kit import rows_of, written

from buckram.cluster import Client
from buckram.core.streams.external.history import copy_of
from buckram.core.streams.metadata.head import HISTORY
from buckram.core.streams.records.batch import Record
from buckram.errors import InvalidArgument, MachineLog, StreamError
from buckram.namespace import Namespace
from buckram.runtime.net.pace import Pace
from buckram.streams.maintain import offload
from buckram.streams.maintain.compaction import compact_stream
from buckram.streams.maintain.history import segment_copy
from buckram.streams.maintain.history import table as exports
from buckram.streams.maintain.history.export import ExportReport, export_stream, plan_export
from buckram.streams.maintain.history.segment_copy import SegmentCopy
from buckram.streams.maintain.history.table import change_export, read_export
from buckram.streams.maintain.offload import offload_stream
from buckram.streams.shared.ledgers import RETIRED, list_intents
from buckram.streams.shared.locations import TABLE, FileLocation


async def export(client: Client, ns: Namespace, there: Path, **options: Any) -> ExportReport:
    return await export_stream(client, ns.store, await plan_export(ns.store, NAME, str(there)), **options)


def rows_in(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return what a table says of each record, in the order of offsets."""
    found = table.sort_by("offset").to_pylist()
    return [
        (
            row["offset"],
            row["value"],
            row["key"],
            tuple((pair["key"], pair["value"]) for pair in row["headers"] or ()),
            round(row["timestamp"].timestamp() * 1e6),
            round(row["append_time"].timestamp() * 1e6),
            row["txid"],
            row["producer"],
            row["sequence"],
        )
        for row in found
    ]


async def directory_of(ns: Namespace, there: Path) -> Path:
    return there / "shop" / "s" / (await ns.info("s")).uid


async def exported(ns: Namespace, there: Path) -> list[tuple[Any, ...]]:
    """Return the records that the files have, after a check that the table has the very same."""
    directory = await directory_of(ns, there)
    scanned = StaticTable.from_metadata(str(directory / TABLE)).scan().to_arrow()
    files = ds.dataset(str(directory), format="parquet").to_table()
    assert rows_in(scanned) == rows_in(files)
    return rows_in(files)


async def nothing_is_left(ns: Namespace, there: Path) -> None:
    """All files are those of published copies, and no intent is left."""
    uid, directory = (await ns.info("s")).uid, await directory_of(ns, there)
    assert [intent for intent in await list_intents(ns.store, uid) if intent.purpose != RETIRED] == []
    known = set((await read_export(ns.store, uid, str(directory))).copies)
    known |= {row.ledger for row in await rows_of(ns) if row.kind == HISTORY}
    assert {copy_of(path.name) for path in files_below(there)} == known


def tuples(records: list[Record]) -> list[tuple[Any, ...]]:
    return [tuple(record) for record in records]


async def test_the_table_and_the_files_have_the_very_records(client: Client, ns: Namespace, tmp_path: Path) -> None:
    before = await written(ns, 6)
    report = await export(client, ns, tmp_path)
    assert (report.segments, report.records, report.first_offset, report.next_offset) == (
        6,
        len(before),
        0,
        len(before),
    )
    assert report.table == f"{report.location}/{TABLE}"
    assert await exported(ns, tmp_path) == tuples(before)
    await nothing_is_left(ns, tmp_path)
    assert await read(ns) == before
    assert all(row.kind != HISTORY for row in await rows_of(ns))


async def test_only_what_is_new_is_copied(client: Client, ns: Namespace, tmp_path: Path) -> None:
    before = await plain(ns, 2)
    assert (await export(client, ns, tmp_path)).segments == 2
    files = {path: path.stat().st_mtime_ns for path in files_below(tmp_path)}
    again = await export(client, ns, tmp_path)
    assert (again.segments, again.records, again.first_offset, again.next_offset) == (0, 0, 6, 6)
    async with ns.writer("s") as writer:
        await writer.append(b"more")
    more = await export(client, ns, tmp_path)
    assert (more.segments, more.records, more.first_offset, more.next_offset) == (1, 1, 6, 7)
    assert files.items() <= {path: path.stat().st_mtime_ns for path in files_below(tmp_path)}.items()
    assert await exported(ns, tmp_path) == tuples(await read(ns))
    assert len(before) == 6
    table = StaticTable.from_metadata(more.table)
    assert [snapshot.summary["total-records"] for snapshot in table.metadata.snapshots] == ["6", "7"]


async def test_a_segment_that_was_compacted_is_copied_from_where_the_export_was(
    client: Client, ns: Namespace, tmp_path: Path
) -> None:
    await ns.create("s", ensemble="3/3/2")
    for segment in range(3):
        async with ns.writer("s", linger_ms=0) as writer:
            for number in range(4):
                await writer.append(b"%d" % number, txid=number + 4 * segment)
        if segment == 1:
            await export(client, ns, tmp_path)
    assert (await compact_stream(client, ns.store, NAME)).segments == 3
    report = await export(client, ns, tmp_path)
    assert (report.segments, report.records, report.first_offset) == (1, 4, 8)
    everything = await read(ns)
    assert len(everything) == 12
    assert await exported(ns, tmp_path) == tuples(everything)
    await nothing_is_left(ns, tmp_path)


async def test_what_is_offloaded_there_is_the_export(client: Client, ns: Namespace, tmp_path: Path) -> None:
    before = await plain(ns, 3)
    await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    report = await export(client, ns, tmp_path)
    assert (report.segments, report.next_offset) == (0, 9)
    elsewhere = await export(client, ns, tmp_path / "elsewhere")
    assert (elsewhere.segments, elsewhere.records) == (3, 9)
    await clean(client)
    assert await exported(ns, tmp_path / "elsewhere") == tuples(before)
    table = StaticTable.from_metadata(report.table).scan().to_arrow()
    assert rows_in(table) == tuples(before)


async def test_an_offload_takes_the_place_of_exported_copies(client: Client, ns: Namespace, tmp_path: Path) -> None:
    before = await plain(ns, 3)
    await export(client, ns, tmp_path)
    report = await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    assert report.segments == 3
    await clean(client)
    assert await exported(ns, tmp_path) == tuples(before)
    await nothing_is_left(ns, tmp_path)
    await ns.truncate("s", before=5)
    await clean(client)
    assert [row[0] for row in await exported(ns, tmp_path)] == [3, 4, 5, 6, 7, 8]


async def test_truncation_leaves_exported_copies_unless_they_are_pruned(
    client: Client, ns: Namespace, tmp_path: Path
) -> None:
    before = await plain(ns, 3)
    await export(client, ns, tmp_path)
    await ns.truncate("s", before=7)
    await clean(client)
    assert await exported(ns, tmp_path) == tuples(before)
    assert (await export(client, ns, tmp_path)).pruned == 0
    assert (await export(client, ns, tmp_path, prune=True)).pruned == 2
    assert await exported(ns, tmp_path) == tuples(before[6:])
    await nothing_is_left(ns, tmp_path)
    assert len(StaticTable.from_metadata(f"{await directory_of(ns, tmp_path)}/{TABLE}").metadata.snapshots) == 1


async def test_what_becomes_history_at_the_place_meanwhile_is_there_once(
    client: Client, ns: Namespace, tmp_path: Path
) -> None:
    before = await plain(ns, 3)
    work = await plan_export(ns.store, NAME, str(tmp_path))
    await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    assert (await export_stream(client, ns.store, work)).next_offset == len(before)
    assert await exported(ns, tmp_path) == tuples(before)


async def test_what_a_killed_offload_left_at_the_place_is_there_once(
    client: Client, ns: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offload was killed before it took out the exported copies; the next export does."""
    before = await plain(ns, 3)
    await export(client, ns, tmp_path)

    async def killed(*args: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(offload, "replace_exported", killed)
        with pytest.raises(asyncio.CancelledError):
            await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    await export(client, ns, tmp_path)
    assert await exported(ns, tmp_path) == tuples(before)


async def test_nothing_is_pruned_where_nothing_is_published(client: Client, ns: Namespace, tmp_path: Path) -> None:
    await ns.create("s")
    assert (await export(client, ns, tmp_path, prune=True)).pruned == 0


async def test_what_was_truncated_before_it_was_exported_is_told(client: Client, ns: Namespace, tmp_path: Path) -> None:
    await plain(ns, 1)
    await export(client, ns, tmp_path)
    for _ in range(2):
        async with ns.writer("s") as writer:
            await writer.append_many([b"a", b"b"])
    await ns.truncate("s", before=5)
    report = await export(client, ns, tmp_path)
    assert (report.missed, report.records, report.next_offset) == (2, 2, 7)


async def test_exported_records_outlive_the_stream(client: Client, ns: Namespace, tmp_path: Path) -> None:
    before = await plain(ns, 2)
    report = await export(client, ns, tmp_path)
    await ns.delete("s")
    assert rows_in(StaticTable.from_metadata(report.table).scan().to_arrow()) == tuples(before)


async def test_locations_and_streams_that_cannot_be_exported(client: Client, ns: Namespace, tmp_path: Path) -> None:
    await plain(ns, 1)
    with pytest.raises(InvalidArgument, match="--to"):
        await plan_export(ns.store, NAME, "somewhere")
    await ns.create_machine_log("m")
    with pytest.raises(MachineLog):
        await plan_export(ns.store, NAME._replace(stream="m"), str(tmp_path))


# -- crashes, and two at once -----------------------------------------------------------------------------


class Crash(BaseException):
    """The process ends here."""


STEPS = ["intent", "half a file", "part", "manifest", "published", "table"]


@pytest.mark.parametrize("step", STEPS)
async def test_a_crash_after_each_step(
    client: Client, ns: Namespace, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_copy, "PART_ENTRIES", 2)
    await ns.create("s", ensemble="3/3/2")
    for _ in range(2):
        async with ns.writer("s", linger_ms=0) as writer:
            for number in range(3):
                await writer.append(b"%d" % number)
    before = await read(ns)
    with monkeypatch.context() as patched:
        _crash_at(step, patched)
        loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(4)
        loop.set_default_executor(threads)
        with pytest.raises(Crash):
            await export(client, ns, tmp_path)
        loop.set_default_executor(ThreadPoolExecutor(4))
        await asyncio.to_thread(threads.shutdown)  # No thread outlives its process.
    assert await read(ns) == before
    report = await export(client, ns, tmp_path)
    assert report.next_offset == len(before)
    assert await exported(ns, tmp_path) == tuples(before)
    await nothing_is_left(ns, tmp_path)


def _crash_at(step: str, patched: pytest.MonkeyPatch) -> None:
    """End the process at this step, which is carried out before unless only half of it is."""

    def crash_after(owner: Any, name: str, times: int = 1) -> None:
        real, left = getattr(owner, name), [times]

        async def crashing(*given: Any, **more: Any) -> Any:
            found = await real(*given, **more)
            left[0] -= 1
            if not left[0]:
                raise Crash
            return found

        patched.setattr(owner, name, crashing)

    from buckram.streams.maintain.history import export as module

    if step == "intent":
        crash_after(module, "make_history_id")
    elif step == "half a file":

        def half(place: FileLocation, file: str, data: bytes, copy: int) -> None:
            (Path(place.location) / f".{file}.unfinished").parent.mkdir(parents=True, exist_ok=True)
            (Path(place.location) / f".{file}.unfinished").write_bytes(data[:10])
            raise Crash

        patched.setattr(FileLocation, "write", half)
    elif step == "part":
        crash_after(SegmentCopy, "_made")
    elif step == "manifest":
        crash_after(SegmentCopy, "make")
    elif step == "published":
        crash_after(module, "_publish")
    else:
        crash_after(module, "update_table")


async def test_of_two_exports_at_once_the_later_one_goes_on(
    client: Client, ns: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await plain(ns, 2)
    waiting, go_on = asyncio.Event(), asyncio.Event()
    real = SegmentCopy.make

    async def slow(copy: SegmentCopy, *given: Any) -> str:
        digest = await real(copy, *given)
        if copy.row.base == 0 and not waiting.is_set():
            waiting.set()
            await go_on.wait()
        return digest

    monkeypatch.setattr(SegmentCopy, "make", slow)
    earlier = asyncio.ensure_future(export(client, ns, tmp_path))
    await waiting.wait()
    assert (await export(client, ns, tmp_path)).segments == 2
    go_on.set()
    with pytest.raises(StreamError, match="took over"):
        await earlier
    assert await exported(ns, tmp_path) == tuples(before)
    await nothing_is_left(ns, tmp_path)


async def test_a_lost_reply_to_the_publication_changes_nothing(
    client: Client, ns: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await plain(ns, 1)
    real, lost = exports.change_export, [True]

    async def losing(*given: Any) -> Any:
        found = await real(*given)
        return None if lost and lost.pop() else found

    monkeypatch.setattr("buckram.streams.maintain.history.export.change_export", losing)
    assert (await export(client, ns, tmp_path)).segments == 1
    assert await exported(ns, tmp_path) == tuples(before)


async def test_the_rate_is_kept(client: Client, ns: Namespace, tmp_path: Path) -> None:
    await plain(ns, 1)
    taken: list[int] = []

    class Counting(Pace):
        async def take(self, size: int) -> None:
            taken.append(size)

    report = await export(client, ns, tmp_path, pace=Counting(1.0))
    assert sum(taken) == report.bytes


async def test_copies_that_the_metadata_have_forgotten_stop_an_export(
    client: Client, ns: Namespace, tmp_path: Path
) -> None:
    """As after a restore of the metadata: what is in the location may be all that is left of the records."""
    await written(ns, 4)
    await export(client, ns, tmp_path)
    directory, uid = await directory_of(ns, tmp_path), (await ns.info("s")).uid
    before = await read_export(ns.store, uid, str(directory))
    for number in range(4):
        async with ns.writer("s") as writer:
            await writer.append(b"more %d" % number)
    await export(client, ns, tmp_path)
    later = await read_export(ns.store, uid, str(directory))
    whole = await exported(ns, tmp_path)
    await change_export(ns.store, uid, str(directory), lambda now: replace(before, version=now.version))
    files = files_below(tmp_path)
    for _ in range(2):
        with pytest.raises(StreamError, match=f"4 copies that the metadata do not know, from offset {before.next} on"):
            await export(client, ns, tmp_path)
        assert files_below(tmp_path) == files
    for path in files:
        if copy_of(path.name) in set(later.copies) - set(before.copies):
            path.unlink()
    await export(client, ns, tmp_path)
    assert await exported(ns, tmp_path) == whole
    await nothing_is_left(ns, tmp_path)
