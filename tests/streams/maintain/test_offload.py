"""Offload of sealed segments: readers see the very same records, and nothing is lost or left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("fsspec")

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.polling import until
from tests.support.segments_kit import rows_of, written

from buckram.cluster import Client
from buckram.core.streams.external.history import Manifest, copy_of, parse_offload_places
from buckram.core.streams.metadata.head import HISTORY
from buckram.core.streams.names import StreamId, StreamName
from buckram.core.streams.records.batch import Record
from buckram.errors import (
    CorruptEntry,
    InvalidArgument,
    NoSuchEntry,
    NoSuchLedger,
    NoSuchStream,
    ReadFailed,
    WriteFailed,
)
from buckram.namespace import Namespace
from buckram.streams.maintain import offload
from buckram.streams.maintain.compaction import Compactable, replace_run
from buckram.streams.maintain.history import segment_copy
from buckram.streams.maintain.history.segment_copy import SegmentCopy
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.janitor_report import JanitorReport
from buckram.streams.maintain.offload import (
    Offloadable,
    check_stream,
    copy_segment,
    offload_planned,
    offload_stream,
    plan_offload,
)
from buckram.streams.read.history_reader import HistoryReader, SegmentFiles
from buckram.streams.shared.ledgers import Intent, discard, drop_ledger, list_intents, make_history_id
from buckram.streams.shared.locations import TABLE, FileLocation

NAME = StreamName("shop", "s")


async def plain(ns: Namespace, segments: int) -> list[Record]:
    """Write a few records to each of many segments, without producers, so that every segment may be offloaded."""
    await ns.create("s", ensemble="3/3/2")
    for number in range(segments):
        async with ns.writer("s") as writer:
            await writer.append_many([b"%d.%d" % (number, place) for place in range(3)])
    return [record async for record in ns.read("s")]


def files_below(directory: Path, ending: str = "") -> list[Path]:
    """Return the files of history, without those of the table around it."""
    return [path for path in everything_below(directory) if path.name.endswith(ending) and TABLE not in path.parts]


def everything_below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


async def clean(client: Client) -> JanitorReport:
    return await Janitor(client, JanitorSettings(grace_s=0, retired_s=0, bulk_age_s=0)).clean()


async def read(ns: Namespace, **span: Any) -> list[Record]:
    return [record async for record in ns.read("s", **span)]


async def nothing_is_left(client: Client, ns: Namespace, history: Path) -> None:
    """Files, ledgers and intents are those of the list, and no others."""
    rows = await rows_of(ns)
    ids = {row.ledger for row in rows if row.kind == HISTORY}
    assert {copy_of(path.name) for path in files_below(history)} == ids
    listed = {row.ledger for row in rows if row.kind != HISTORY}
    assert {ledger async for ledger in client.list()} == listed
    assert await list_intents(ns.store, (await ns.info("s")).uid) == []


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_records_offsets_and_times_stay(client: Client, ns: Namespace, tmp_path: Path, compression: str) -> None:
    before = await written(ns, 6, compression=compression)
    old = await rows_of(ns)
    report = await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    assert (report.segments, report.kept, report.put_off) == (5, 1, 0)
    assert report.records == sum(row.end - row.base for row in await rows_of(ns) if row.kind == HISTORY)
    await clean(client)
    for was, now in zip(old, await rows_of(ns), strict=True):
        if now.kind == HISTORY:
            with pytest.raises(NoSuchLedger):
                await client.open(was.ledger)
    assert await read(ns) == before
    for record in before:
        assert await ns.get("s", record.offset) == record
        first = await anext(ns.read("s", start_time=record.append_time))
        assert first == next(r for r in before if r.append_time >= record.append_time)
    last = max(record.txid for record in before if record.txid is not None)
    found = await anext(ns.read("s", start_txid=last))
    assert found == next(r for r in before if r.txid == last)


async def test_segments_of_many_parts(
    client: Client, ns: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_copy, "PART_ENTRIES", 3)
    await ns.create("s", ensemble="3/3/2")
    async with ns.writer("s", linger_ms=0) as writer:
        for number in range(20):
            await writer.append(b"%d" % number, txid=number)
    before = await read(ns)
    await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    assert len(files_below(tmp_path, ".parquet")) > 3
    assert await read(ns) == before
    for offset in range(20):
        assert await read(ns, start=offset) == before[offset:]
        assert (await anext(ns.read("s", start_txid=offset))).offset == offset


async def test_a_writer_and_its_producers_go_on(client: Client, ns: Namespace, tmp_path: Path) -> None:
    before = await written(ns, 4)
    await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    await clean(client)
    last = max(r.sequence for r in before if r.sequence is not None)
    async with ns.writer("s") as writer:
        assert await writer.append(b"again", producer="p", sequence=last) == before[-1].offset
        await writer.append(b"next", producer="p", sequence=last + 1)
        tail = ns.read("s", start=before[-1].offset, follow=True)
        assert [(await anext(tail)).value for _ in range(2)] == [before[-1].value, b"next"]
        await tail.close()
    assert (await offload_stream(client, ns.store, NAME, to=str(tmp_path))).segments == 1
    assert (await read(ns))[:-1] == before


async def test_two_offloads_at_once_and_a_lost_reply(client: Client, ns: Namespace, tmp_path: Path) -> None:
    before = await plain(ns, 2)
    work = await plan_offload(ns.store, NAME, to=str(tmp_path))
    first, _ = await copy_segment(client, ns.store, work, work.rows[0])
    second, _ = await copy_segment(client, ns.store, work, work.rows[0])
    run = Compactable(work.name, work.uid, work.epoch, work.policy, ())
    assert await replace_run(client, ns.store, run, first)
    assert await replace_run(client, ns.store, run, first)
    assert not await replace_run(client, ns.store, run, second)
    await clean(client)
    await nothing_is_left(client, ns, tmp_path)
    assert await read(ns) == before


async def test_a_segment_that_is_truncated_meanwhile_is_put_off(client: Client, ns: Namespace, tmp_path: Path) -> None:
    await plain(ns, 2)
    work = await plan_offload(ns.store, NAME, to=str(tmp_path))
    await ns.truncate("s", before=4)
    report = await offload_planned(client, ns.store, work)
    assert (report.segments, report.put_off) == (1, 1)
    await clean(client)
    await nothing_is_left(client, ns, tmp_path)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("end", ["stream deleted", "intent taken"])
async def test_files_that_are_written_after_their_intent_was_taken_are_deleted(
    client: Client, ns: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, fails: bool
) -> None:
    """Whoever took the intent has looked for files already, and the janitor knows nothing of them any more."""
    await plain(ns, 2)
    uid, loop, write = (await ns.info("s")).uid, asyncio.get_running_loop(), SegmentCopy._write_manifest

    async def take() -> None:
        if end == "stream deleted":
            with suppress(NoSuchStream):
                await ns.delete("s")
        for intent in await list_intents(ns.store, uid):
            await discard(client, ns.store, uid, intent)

    def write_late(copy: SegmentCopy, data: bytes) -> None:
        asyncio.run_coroutine_threadsafe(take(), loop).result()
        write(copy, data)
        if fails:
            raise WriteFailed(copy.copy, "the location is away")

    monkeypatch.setattr(SegmentCopy, "_write_manifest", write_late)
    with suppress(WriteFailed, NoSuchStream):
        await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    assert files_below(tmp_path) == []


# -- truncation and deletion reach the files --------------------------------------------------------------


async def test_truncation_and_deletion_reach_the_files(client: Client, ns: Namespace, tmp_path: Path) -> None:
    before = await plain(ns, 4)
    await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    await ns.truncate("s", before=7)
    assert await read(ns) == before[7:]
    await clean(client)
    await nothing_is_left(client, ns, tmp_path)
    assert len(files_below(tmp_path, ".parquet")) == 2
    await ns.delete("s")
    assert everything_below(tmp_path) == []


async def test_a_stream_whose_history_is_away_is_deleted_by_force(
    client: Client, ns: Namespace, tmp_path: Path
) -> None:
    await plain(ns, 2)
    there = tmp_path / "history"
    await offload_stream(client, ns.store, NAME, to=str(there))
    there.rename(tmp_path / "elsewhere")
    (tmp_path / "history").write_text("in the way")
    with pytest.raises(ReadFailed, match="history"):
        await ns.delete("s")
    await ns.delete("s", force=True)


# -- policy -----------------------------------------------------------------------------------------------


async def test_the_janitor_offloads_by_policy(client: Client, ns: Namespace, tmp_path: Path) -> None:
    before = await plain(ns, 4)
    assert (await clean(client)).offloaded_segments == 0
    await ns.set_policy("s", offload_to=str(tmp_path), offload_bytes=1)
    assert (await clean(client)).offloaded_segments == 3
    await ns.set_policy("s", offload_bytes=None, offload_after_s=3600)
    assert (await clean(client)).offloaded_segments == 0
    await ns.set_policy("s", offload_after_s=0)
    assert (await clean(client)).offloaded_segments == 1
    await clean(client)
    await nothing_is_left(client, ns, tmp_path)
    assert await read(ns) == before


def _everything(where: Path) -> set[str]:
    return {str(one) for one in where.rglob("*")}


@pytest.mark.parametrize("to", ["other", "listed/../other", "listed/deeper", "listed"])
async def test_policies_send_history_where_an_operator_has_listed(
    client: Client, ns: Namespace, tmp_path: Path, to: str
) -> None:
    await plain(ns, 2)
    places = parse_offload_places(f"{NAME.namespace}={tmp_path}/listed another={tmp_path}/other")
    await ns.set_policy("s", offload_to=f"{tmp_path}/{to}", offload_after_s=0)
    report = await Janitor(client, JanitorSettings(grace_s=0), offload_places=places).clean()
    if to == "listed":
        assert (report.offloaded_segments, report.problems) == (2, [])
        return
    assert report.offloaded_segments == 0
    assert any("offload_places" in problem for problem in report.problems)
    assert _everything(tmp_path) == set()


async def test_a_janitor_deletes_history_at_listed_places_only(client: Client, ns: Namespace, tmp_path: Path) -> None:
    """The segment list is the tenant's: it may name any directory, that of another tenant as well."""
    await plain(ns, 2)
    await offload_stream(client, ns.store, NAME, to=str(tmp_path / "other"))
    kept = _everything(tmp_path)
    await ns.set_policy("s", retention_bytes=0)
    none = parse_offload_places("")
    report = await Janitor(client, JanitorSettings(grace_s=0), offload_places=none).clean()
    assert report.deleted_segments == 0
    assert any("offload_places" in problem for problem in report.problems)
    assert _everything(tmp_path) == kept
    assert (await clean(client)).deleted_segments == 2


async def test_a_location_that_is_away_stops_nothing_else(client: Client, ns: Namespace, tmp_path: Path) -> None:
    before = await plain(ns, 2)
    (tmp_path / "file").write_text("no directory")
    await ns.set_policy("s", offload_to=f"{tmp_path}/file", offload_after_s=0)
    report = await clean(client)
    assert report.offloaded_segments == 0
    assert any(f"{tmp_path}/file" in problem for problem in report.problems)
    assert await read(ns) == before
    await ns.set_policy("s", offload_to=f"{tmp_path}/good")
    assert (await clean(client)).offloaded_segments == 2


@pytest.mark.parametrize("location", ["history", "s3://", "://x", "s3://me:secret@bucket/x", 7, "/a\nb"])
async def test_bad_locations_are_refused(ns: Namespace, location: Any) -> None:
    with pytest.raises(InvalidArgument, match="offload_to") as refused:
        await ns.create("s", offload_to=location)
    assert "secret" not in str(refused.value)


async def test_a_stream_without_a_location_says_what_to_do(client: Client, ns: Namespace) -> None:
    await plain(ns, 1)
    with pytest.raises(InvalidArgument, match="offload_to"):
        await offload_stream(client, ns.store, NAME)


# -- locations that fail ----------------------------------------------------------------------------------


class Rotten(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A location in memory that does to each file what the test says, before it is kept."""

    protocol = "rotten"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}  # Not the files of other tests.
    pseudo_dirs: ClassVar[list[str]] = [""]
    spoil: Callable[[str, bytes], bytes | None] = staticmethod(lambda _, data: data)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        kept = type(self).spoil(path, value)
        if kept is not None:
            super().pipe_file(path, kept, mode, **more)


@pytest.fixture
def rotten() -> Iterator[type[Rotten]]:
    fsspec.register_implementation("rotten", Rotten, clobber=True)
    yield Rotten
    Rotten.spoil = staticmethod(lambda _, data: data)
    Rotten.store.clear()


class Counted:
    """Lets threads wait until something has happened so many times."""

    def __init__(self, times: int) -> None:
        self._left, self._happened = times, threading.Event()

    def count(self) -> None:
        self._left -= 1
        if not self._left:
            self._happened.set()

    def wait(self) -> bool:
        """Return whether it has happened in time."""
        return self._happened.wait(20)


def _flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("what", [".parquet", ".json"])
@pytest.mark.parametrize("spoil", [_flip, lambda _: None, lambda data: data[:-1], lambda _: b""])
async def test_nothing_goes_before_it_was_verified(
    client: Client, ns: Namespace, rotten: type[Rotten], what: str, spoil: Callable[[bytes], bytes | None]
) -> None:
    before = await plain(ns, 1)
    rotten.spoil = staticmethod(lambda path, data: spoil(data) if path.endswith(what) else data)
    with pytest.raises((CorruptEntry, WriteFailed, ReadFailed), match="rotten://"):
        await offload_stream(client, ns.store, NAME, to="rotten://history")
    assert [row.kind == HISTORY for row in await rows_of(ns)] == [False]
    await clean(client)
    assert await read(ns) == before
    assert Rotten.store == {}
    rotten.spoil = staticmethod(lambda _, data: data)
    assert (await offload_stream(client, ns.store, NAME, to="rotten://history")).segments == 1
    await clean(client)
    assert await read(ns) == before


async def test_the_next_segment_is_read_while_one_is_written(
    client: Client, ns: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await plain(ns, 3)
    real, begun, waited = FileLocation.write, Counted(2), list[bool]()

    def slow(place: FileLocation, file: str, data: bytes, copy: int) -> None:
        if file.startswith("_") and not waited:
            waited.append(begun.wait())
        real(place, file, data, copy)

    async def begin(*given: Any, **more: Any) -> Intent:
        begun.count()
        return await make_history_id(*given, **more)

    monkeypatch.setattr(FileLocation, "write", slow)
    monkeypatch.setattr(offload, "make_history_id", begin)
    assert (await offload_stream(client, ns.store, NAME, to=str(tmp_path))).segments == 3
    assert waited == [True]
    assert await read(ns) == before


async def test_a_failure_leaves_nothing_of_the_next_segment(
    client: Client, ns: Namespace, rotten: type[Rotten], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await plain(ns, 3)
    manifests = Counted(2)

    def spoil(path: str, data: bytes) -> bytes:
        if not path.rsplit("/", 1)[-1].startswith("_"):
            return data
        manifests.count()
        manifests.wait()  # The second segment is whole when the first one fails.
        return _flip(data) if f"_{0:020d}-" in path else data

    rotten.spoil = staticmethod(spoil)
    with pytest.raises(CorruptEntry, match="read back"):
        await offload_stream(client, ns.store, NAME, to="rotten://lake")
    assert manifests.wait()
    assert not [path for path in rotten.store if path.endswith(".parquet")]
    assert await list_intents(ns.store, (await ns.info("s")).uid) == []
    assert await read(ns) == before


async def test_what_is_wrong_at_the_location_is_told(client: Client, ns: Namespace, tmp_path: Path) -> None:
    before = await plain(ns, 1)
    await offload_stream(client, ns.store, NAME, to=str(tmp_path / "history"))
    await clean(client)
    (row,) = await rows_of(ns)
    for ending in (".parquet", ".json"):
        (path,) = files_below(tmp_path, ending)
        good = path.read_bytes()
        path.write_bytes(_flip(good))
        with pytest.raises(CorruptEntry, match="history"):
            await read(ns)
        assert len((await check_stream(client, ns.store, NAME)).problems) == 1
        path.unlink()
        with pytest.raises(NoSuchEntry, match=path.name):
            await HistoryReader(StreamId(NAME, (await ns.info(NAME.stream)).uid), row).get(0)
        assert len((await check_stream(client, ns.store, NAME)).problems) == 1
        path.write_bytes(good)
    found = await check_stream(client, ns.store, NAME)
    assert (found.segments, found.history, found.records, found.problems) == (1, 1, len(before), [])


async def test_readers_wait_for_a_location_that_is_away(
    client: Client, ns: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await plain(ns, 1)
    there = tmp_path / "history"
    await offload_stream(client, ns.store, NAME, to=str(there))
    (row,) = await rows_of(ns)
    there.rename(tmp_path / "away")
    with pytest.raises(ReadFailed, match=str(there)) as failed:
        await HistoryReader(StreamId(NAME, (await ns.info(NAME.stream)).uid), row).get(0)
    assert failed.value.retryable
    tries: list[str] = []
    manifest = SegmentFiles.manifest

    def noted(files: SegmentFiles) -> Manifest:
        tries.append(files.location)
        return manifest(files)

    monkeypatch.setattr(SegmentFiles, "manifest", noted)
    reading = asyncio.ensure_future(read(ns))
    await until(lambda: len(tries) > 1)
    assert not reading.done()
    (tmp_path / "away").rename(there)
    assert await reading == before


# -- crashes ----------------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process ends here."""


class CrashingExecutor(ThreadPoolExecutor):
    """Runs so many calls in threads, and crashes at the next one."""

    def __init__(self, calls: int) -> None:
        super().__init__(1)
        self.left = calls

    def submit(self, *call: Any, **more: Any) -> Future[Any]:
        if not self.left:
            raise Crash
        self.left -= 1
        return super().submit(*call, **more)


async def _crash_at_call(client: Client, ns: Namespace, there: str, calls: int) -> None:
    loop = asyncio.get_running_loop()
    executor = CrashingExecutor(calls)
    loop.set_default_executor(executor)
    try:
        with pytest.raises(Crash):
            await offload_stream(client, ns.store, NAME, to=there)
    finally:
        loop.set_default_executor(ThreadPoolExecutor(2))
    await asyncio.to_thread(executor.shutdown)  # No thread outlives its process.


STEPS = ["intent", "half a file", "part", "parts", "manifest", "listed", "ledger deleted"]


@pytest.mark.parametrize("step", STEPS)
async def test_a_crash_after_each_step(
    client: Client, ns: Namespace, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_copy, "PART_ENTRIES", 2)
    await ns.create("s", ensemble="3/3/2")
    async with ns.writer("s", linger_ms=0) as writer:
        for number in range(3):
            await writer.append(b"%d" % number)
    before = await read(ns)
    work = await plan_offload(ns.store, NAME, to=str(tmp_path))
    (row,) = work.rows
    if step in ("intent", "half a file"):
        intent = await make_history_id(client, ns.store, work.uid, work.directory, epoch=work.epoch)
        if step == "half a file":
            FileLocation(work.directory).write(f"{0:020d}-{intent.ledger:019d}-{0:06d}.parquet", b"half", intent.ledger)
            (path,) = files_below(tmp_path, ".parquet")
            path.rename(path.with_name(f".{path.name}.unfinished"))
    elif step in ("part", "parts"):
        await _crash_at_call(client, ns, str(tmp_path), 1 if step == "part" else 2)
    else:
        copied, _ = await copy_segment(client, ns.store, work, row)
        if step != "manifest":
            assert await replace_run(client, ns.store, Compactable(*_stream_of(work)), copied)
        if step == "ledger deleted":
            await drop_ledger(client, ns.store, StreamId(NAME, (await ns.info("s")).uid), row.ledger)
    assert await read(ns) == before
    await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    assert await read(ns) == before
    await clean(client)
    await clean(client)
    await nothing_is_left(client, ns, tmp_path)
    assert await read(ns) == before


def _stream_of(work: Offloadable) -> tuple[Any, ...]:
    return work.name, work.uid, work.epoch, work.policy, ()
