"""Imports: each row of the files is in the stream once, whatever is interrupted, repeated or changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("fsspec")

import pyarrow as pa
import pyarrow.parquet as pq

from buckram.cluster import Client
from buckram.core.streams.external.imports import ImportColumns, ImportPosition, position_of
from buckram.core.streams.names import StreamName
from buckram.errors import BuckramError, InvalidArgument, MalformedSource, NoSuchStream, OpenSegment, StreamError
from buckram.namespace import Namespace
from buckram.runtime.net.pace import Pace
from buckram.streams.maintain import imports
from buckram.streams.maintain.import_sources import ImportSource
from buckram.streams.maintain.imports import ImportReport, import_files, plan_import
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.shared.ledgers import list_intents
from buckram.streams.write.bulk import Bulk, BulkLedger

NAME = StreamName("shop", "s")
ROWS = 40


@pytest.fixture
async def stream(ns: Namespace) -> Namespace:
    await ns.create("s", ensemble="3/3/2")
    return ns


def lines_in(folder: Path, name: str, first: int, count: int = ROWS) -> None:
    (folder / name).write_text("".join(json.dumps({"n": n}) + "\n" for n in range(first, first + count)))


async def run(
    client: Client, ns: Namespace, folder: Path, *, size: int = 200, kind: str = "jsonl", **more: Any
) -> ImportReport:
    source, pace, columns = ImportSource(str(folder)), more.pop("pace", None), more.pop("columns", ImportColumns())
    work = await plan_import(ns.store, NAME, source, kind, columns, range_bytes=size, **more)
    return await import_files(client, ns.store, work, source, pace=pace)


async def numbers(ns: Namespace) -> list[int]:
    return [json.loads(record.value or b"")["n"] async for record in ns.read("s")]


async def nothing_is_left(client: Client, ns: Namespace) -> None:
    await Janitor(client, JanitorSettings(grace_s=0, retired_s=0)).clean()
    assert await list_intents(ns.store, (await ns.info("s")).uid) == []
    listed = {row.ledger async for row in ns.segments("s")}
    assert {ledger async for ledger in client.list()} == listed


async def test_each_row_is_imported_once(client: Client, stream: Namespace, tmp_path: Path) -> None:
    lines_in(tmp_path, "a.jsonl", 0)
    lines_in(tmp_path, "b.jsonl", ROWS)
    report = await run(client, stream, tmp_path)
    assert (report.records, report.first_offset, report.next_offset) == (2 * ROWS, 0, 2 * ROWS)
    assert report.ranges == 4
    assert await numbers(stream) == list(range(2 * ROWS))
    again = await run(client, stream, tmp_path)
    assert (again.records, again.ranges, again.known, again.next_offset) == (0, 0, 2, 2 * ROWS)
    lines_in(tmp_path, "c.jsonl", 2 * ROWS)
    more = await run(client, stream, tmp_path)
    assert (more.records, more.first_offset, more.known) == (ROWS, 2 * ROWS, 2)
    assert await numbers(stream) == list(range(3 * ROWS))
    await nothing_is_left(client, stream)


async def test_columns_become_keys_times_and_headers(client: Client, stream: Namespace, tmp_path: Path) -> None:
    headers = pa.array([[{"key": "h", "value": b"1"}], None])
    columns = {"body": [b"a", None], "who": ["x", "y"], "at": [5, 6], "extra": headers}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    chosen = ImportColumns("body", "who", "at", "extra", "ms")
    await run(client, stream, tmp_path, kind="parquet", columns=chosen)
    found = [record async for record in stream.read("s")]
    assert [(r.value, r.key, r.timestamp, r.headers) for r in found] == [
        (b"a", b"x", 5000, (("h", b"1"),)),
        (None, b"y", 6000, ()),
    ]


class Crash(BaseException):
    """The process ends here."""


STEPS = ["ledger", "written", "closed", "published", "record"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [0, 1])
async def test_a_crash_after_each_step(
    client: Client, stream: Namespace, tmp_path: Path, step: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines_in(tmp_path, "a.jsonl", 0, 20)
    lines_in(tmp_path, "b.jsonl", 20, 20)
    owner, name = {
        "ledger": (Bulk, "create_ledger"),
        "written": (imports._Range, "_write"),
        "closed": (imports._Range, "_publish"),
        "published": (Bulk, "publish_if"),
        "record": (imports._Range, "publish"),
    }[step]
    real, left = getattr(owner, name), [after]

    async def crashing(*given: Any, **more: Any) -> Any:
        if step == "closed" and not left[0]:
            raise Crash
        found = await real(*given, **more)
        if not left[0]:
            raise Crash
        left[0] -= 1
        return found

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, crashing)
        patched.setattr(Bulk, "abort", _nothing)  # Nobody cleans after a process that has ended.
        with pytest.raises(Crash):
            await run(client, stream, tmp_path)
    assert await numbers(stream) == list(range(len(await numbers(stream))))
    await run(client, stream, tmp_path)
    assert await numbers(stream) == list(range(40))
    await nothing_is_left(client, stream)


async def _nothing(*_: Any) -> None:
    return


async def test_two_runs_at_once_import_each_row_once(client: Client, stream: Namespace, tmp_path: Path) -> None:
    lines_in(tmp_path, "a.jsonl", 0)
    both = await asyncio.gather(run(client, stream, tmp_path), run(client, stream, tmp_path), return_exceptions=True)
    assert all(isinstance(one, ImportReport | StreamError) for one in both)
    await run(client, stream, tmp_path)
    assert await numbers(stream) == list(range(ROWS))
    await nothing_is_left(client, stream)


async def test_a_run_with_an_older_list_of_files_cannot_publish(
    client: Client, stream: Namespace, tmp_path: Path
) -> None:
    lines_in(tmp_path, "a.jsonl", 0)
    lines_in(tmp_path, "c.jsonl", 2 * ROWS)
    source = ImportSource(str(tmp_path))
    older = await plan_import(stream.store, NAME, source, "jsonl", ImportColumns(), range_bytes=10**6)
    lines_in(tmp_path, "b.jsonl", ROWS)
    await plan_import(stream.store, NAME, source, "jsonl", ImportColumns(), range_bytes=10**6)
    with pytest.raises(StreamError, match="took over"):
        await import_files(client, stream.store, older, source)
    await run(client, stream, tmp_path)
    assert await numbers(stream) == list(range(3 * ROWS))


async def test_sources_that_changed_are_refused(client: Client, stream: Namespace, tmp_path: Path) -> None:
    lines_in(tmp_path, "b.jsonl", 0)
    await run(client, stream, tmp_path)
    lines_in(tmp_path, "a.jsonl", 1000)
    with pytest.raises(InvalidArgument, match=r"file 1 of 1 .* there is a\.jsonl"):
        await run(client, stream, tmp_path)
    (tmp_path / "a.jsonl").unlink()
    lines_in(tmp_path, "b.jsonl", 0, ROWS + 1)
    with pytest.raises(InvalidArgument, match="has changed"):
        await run(client, stream, tmp_path)
    lines_in(tmp_path, "b.jsonl", 0)
    with pytest.raises(InvalidArgument, match="with no columns named before"):
        await run(client, stream, tmp_path, columns=ImportColumns(key="n"))
    await run(client, stream, tmp_path, columns=ImportColumns(key="n"), run="again")
    assert await numbers(stream) == [*range(ROWS), *range(ROWS)]


async def test_a_bad_row_stops_before_its_range(client: Client, stream: Namespace, tmp_path: Path) -> None:
    lines_in(tmp_path, "a.jsonl", 0)
    (tmp_path / "b.jsonl").write_text('{"n": 40}\nnonsense\n')
    with pytest.raises(MalformedSource, match=r"b\.jsonl, line 2"):
        await run(client, stream, tmp_path)
    assert await numbers(stream) == list(range(ROWS))
    await nothing_is_left(client, stream)
    (tmp_path / "b.jsonl").write_text('{"n": 40}\n{"n": 41}\n')
    assert (await run(client, stream, tmp_path)).records == 2
    assert await numbers(stream) == list(range(ROWS + 2))


async def test_a_row_that_is_too_large_is_told(client: Client, stream: Namespace, tmp_path: Path) -> None:
    pq.write_table(pa.table({"value": [b"x" * 20_000_000]}), tmp_path / "a.parquet")
    with pytest.raises(MalformedSource, match=r"a\.parquet: it has a row that is too large"):
        await run(client, stream, tmp_path, kind="parquet")


async def test_a_stream_with_a_writer_is_refused(client: Client, stream: Namespace, tmp_path: Path) -> None:
    lines_in(tmp_path, "a.jsonl", 0)
    async with stream.writer("s") as writer:
        await writer.append(b'{"n": -1}')
        with pytest.raises(OpenSegment):
            await run(client, stream, tmp_path)
    await run(client, stream, tmp_path)
    assert await numbers(stream) == list(range(-1, ROWS))


async def test_a_deletion_meanwhile_fails_no_task(
    client: Client, stream: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller is told that the ledger was fenced, and it was logged as a task that failed, too."""
    lines_in(tmp_path, "a.jsonl", 0)
    append = BulkLedger.append_entries

    async def append_late(ledger: BulkLedger, entries: Sequence[bytes]) -> None:
        with suppress(NoSuchStream):
            await stream.delete("s")
        await append(ledger, entries)

    monkeypatch.setattr(BulkLedger, "append_entries", append_late)
    with pytest.raises(BuckramError):
        await run(client, stream, tmp_path)
    assert [record.getMessage() for record in caplog.records if "failed" in record.getMessage()] == []


async def test_the_rate_is_kept(client: Client, stream: Namespace, tmp_path: Path) -> None:
    lines_in(tmp_path, "a.jsonl", 0)
    taken: list[int] = []

    class Counting(Pace):
        async def take(self, size: int) -> None:
            taken.append(size)

    await run(client, stream, tmp_path, pace=Counting(1.0))
    assert sum(taken) >= (tmp_path / "a.jsonl").stat().st_size


def test_versions_are_positions() -> None:
    for position in (ImportPosition(0, 0), ImportPosition(3, 7), ImportPosition(29_999, 2**31)):
        assert position_of(position.version) == position
    assert ImportPosition(1, 0).version > ImportPosition(0, 2**31).version
