"""Verification: equal sides are equal however they are stored, and the first difference is told."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyiceberg")

import pyarrow as pa
from tests.streams.maintain.history.test_export import export
from tests.streams.maintain.test_offload import NAME, clean, files_below, plain
from tests.support.segments_kit import written

from buckram.cluster import Client
from buckram.core.streams.names import StreamName
from buckram.errors import CorruptEntry, InvalidArgument, NoSuchStream
from buckram.namespace import Namespace
from buckram.streams.maintain.compaction import compact_stream
from buckram.streams.maintain.history.row_compare import first_difference
from buckram.streams.maintain.history.verify import VerifyReport, files_side, stream_side, verify
from buckram.streams.maintain.offload import offload_stream
from buckram.streams.shared.locations import TABLE

OTHER = StreamName("shop", "other")


async def with_other(client: Client) -> VerifyReport:
    return await verify(await stream_side(client, NAME), await stream_side(client, OTHER))


async def with_files(client: Client, place: Path) -> VerifyReport:
    return await verify(await stream_side(client, NAME), await files_side(client, NAME, str(place)))


async def copied(ns: Namespace, count: int | None = None, **change: Any) -> None:
    """Write the records of `s` to `other`, each in an entry of its own; `change` is put into the last one."""
    records = [record async for record in ns.read("s")][:count]
    await ns.create("other", ensemble="3/3/2")
    async with ns.writer("other", linger_ms=0) as writer:
        for record in records:
            told: dict[str, Any] = {"key": record.key, "headers": record.headers, "timestamp": record.timestamp}
            told |= {"txid": record.txid, "producer": record.producer, "sequence": record.sequence}
            last = record is records[-1]
            await writer.append(change.get("value", record.value) if last else record.value, **told)


async def test_equal_streams_are_equal_however_they_are_stored(client: Client, ns: Namespace) -> None:
    before = await written(ns, 6)
    await copied(ns)
    await compact_stream(client, ns.store, NAME)
    report = await with_other(client)
    assert (report.equal, report.records, report.next_offset) == (True, len(before), len(before))
    assert report.difference is None


async def test_the_first_difference_is_told(client: Client, ns: Namespace) -> None:
    before = await plain(ns, 2)
    await copied(ns, value=b"\xff")
    report = await with_other(client)
    assert not report.equal
    assert report.difference is not None
    assert (report.difference.offset, report.difference.column) == (before[-1].offset, "value")
    assert (report.difference.a, report.difference.b) == ("'1.2'", "base64:/w==")
    assert report.records == len(before) - 1


async def test_a_stream_that_ends_earlier_differs(client: Client, ns: Namespace) -> None:
    await plain(ns, 2)
    await copied(ns, 5)
    report = await with_other(client)
    assert report.difference is not None
    assert (report.difference.offset, report.difference.a, report.difference.b) == (5, "a record", "no record")
    assert (report.a_end, report.b_end) == (6, 5)


async def test_what_was_truncated_is_not_compared(client: Client, ns: Namespace) -> None:
    await plain(ns, 2)
    await copied(ns)
    await ns.truncate("s", before=4)
    report = await with_other(client)
    assert (report.equal, report.first_offset, report.records) == (True, 4, 2)


async def test_files_are_compared_as_far_as_they_go(client: Client, ns: Namespace, tmp_path: Path) -> None:
    before = await written(ns, 4)
    await export(client, ns, tmp_path)
    async with ns.writer("s") as writer:
        await writer.append(b"later")
        report = await with_files(client, tmp_path)
    assert (report.equal, report.records) == (True, len(before))
    await ns.truncate("s", before=3)
    assert (await with_files(client, tmp_path)).records == len(before) - 3
    directory = next(path.parent for path in files_below(tmp_path))
    shutil.rmtree(directory / TABLE)
    assert (await with_files(client, directory)).equal


async def test_history_is_compared_with_itself(client: Client, ns: Namespace, tmp_path: Path) -> None:
    before = await plain(ns, 2)
    await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    await clean(client)
    assert (await with_files(client, tmp_path)).records == len(before)


async def test_files_that_are_damaged_or_missing_are_told(client: Client, ns: Namespace, tmp_path: Path) -> None:
    await plain(ns, 1)
    await export(client, ns, tmp_path)
    (part,) = files_below(tmp_path, ".parquet")
    good = part.read_bytes()
    # The records are the same, and only the digest tells.
    at = good.index(b"buckram.entries") + 60
    part.write_bytes(good[:at] + (b"A" if good[at : at + 1] != b"A" else b"B") + good[at + 1 :])
    with pytest.raises(CorruptEntry, match=part.name):
        await with_files(client, tmp_path)
    part.unlink()
    with pytest.raises(CorruptEntry, match=part.name):
        await with_files(client, tmp_path)
    (manifest,) = files_below(tmp_path, ".json")
    manifest.unlink()
    with pytest.raises(InvalidArgument, match="no files of stream"):
        await with_files(client, tmp_path)


async def test_sides_that_are_not_there(client: Client, ns: Namespace, tmp_path: Path) -> None:
    await plain(ns, 1)
    with pytest.raises(InvalidArgument, match="B 'nowhere'"):
        await files_side(client, NAME, "nowhere")
    with pytest.raises(NoSuchStream):
        await stream_side(client, OTHER)


def test_the_first_row_counts_whatever_the_column() -> None:
    a = pa.RecordBatch.from_pydict({"x": [1, 2, 3, 4], "y": [[1], None, [], [2]]})
    b = pa.RecordBatch.from_pydict({"x": [1, 2, 0, 4], "y": [[1], [], [], [2]]})
    assert first_difference(a, b, ("y",)) is None
    found = first_difference(a, b, ("y", "x"))
    assert found is not None
    assert found[:4] == (2, "x", "3", "0")
    c = pa.RecordBatch.from_pydict({"x": [1, 2, 0, 4], "y": [[1], [9], [], [2]]})
    found = first_difference(a, c, ("x", "y"))
    assert found is not None
    assert (found.row, found.column) == (1, "y")
    assert first_difference(a.slice(2), b.slice(2), ("y",)) is None
