"""Rows of files: each row once however a file is cut into ranges, and a bad one is told by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("fsspec")

import pyarrow as pa
import pyarrow.parquet as pq

from buckram.core.streams.external.imports import ImportColumns
from buckram.errors import InvalidArgument, MalformedSource
from buckram.streams.maintain import import_sources as sources
from buckram.streams.maintain.import_source_rows import ranges_of, steps_of
from buckram.streams.maintain.import_sources import ImportSource

RANGES = (50, 999, 10**9)


def read(path: Path, kind: str, columns: ImportColumns | None = None, size: int = 10**9) -> list[dict[str, Any]]:
    """Return the rows of all ranges of one file."""
    source = ImportSource(str(path))
    (file,), _ = source.files(kind)
    found: list[dict[str, Any]] = []
    for number in range(ranges_of(source, file, kind, size)):
        for step in steps_of(source, file, kind, columns or ImportColumns(), size, number):
            if (batch := step()) is not None:
                found += batch.to_pylist()
    return found


@pytest.mark.parametrize("size", RANGES)
@pytest.mark.parametrize("block", [64, 2**20])
def test_lines_of_json_come_once(tmp_path: Path, size: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_BLOCK_BYTES", block)
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"id": number, "text": "x" * (number % 40)}) for number in range(300)]
    path.write_text("\r\n\n".join(lines))
    rows = read(path, "jsonl", ImportColumns(key="id"), size)
    assert [row["value"].decode() for row in rows] == lines
    assert [row["key"] for row in rows] == [str(number) for number in range(300)]


@pytest.mark.parametrize("size", RANGES)
def test_lines_of_csv_come_once(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,when,text\n" + "".join(f'{n},{n},"a, {n}"\r\n' for n in range(300)))
    rows = read(path, "csv", ImportColumns(value="text", key="id", time="when", time_unit="s"), size)
    assert [row["value"] for row in rows] == [b"a, %d" % n for n in range(300)]
    assert [row["timestamp"].timestamp() for row in rows] == list(range(300))


@pytest.mark.parametrize("size", RANGES)
def test_rows_of_parquet_come_once(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"value": [b"%d" % n for n in range(300)], "key": range(300)}), path, row_group_size=7)
    rows = read(path, "parquet", size=size)
    assert rows == [{"value": b"%d" % n, "key": str(n)} for n in range(300)]


def test_values_of_json_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    given = ["text", "2026-01-01T00:00:00", 7, 2**70, 1.5, True, None, {"a": [1, 2]}, "ü", ""]
    path.write_text("".join(json.dumps({"v": item}) + "\n" for item in given) + "{}\n")
    rows = read(path, "jsonl", ImportColumns(value="v"))
    told = [item if item is None or isinstance(item, str) else json.dumps(item) for item in given]
    assert [row["value"] for row in rows] == [*told, None]


def test_times_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    times = ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", "2026-01-01 00:00:00", 1767225600, None]
    for given in [[time] for time in times] + [times]:
        path.write_text("".join(json.dumps({"t": time}) + "\n" for time in given))
        rows = read(path, "jsonl", ImportColumns(time="t", time_unit="s"))
        assert {row["timestamp"] and row["timestamp"].timestamp() for row in rows} <= {1767225600.0, None}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"v": 1', "no JSON"),
        ("[1]", "no JSON object"),
        ('{"t": "yesterday"}', "yesterday"),
        ('{"t": 99999999999999999999}', "99999999999999999999"),
        ('{"k": "\\ud800"}', "surrogate"),
    ],
)
@pytest.mark.parametrize("size", [40, 10**9])
def test_a_bad_line_of_json_is_told(tmp_path: Path, line: str, why: str, size: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"k": "a"}\n' * 9 + "\n" + line + "\n" + '{"k": "b"}\n')
    with pytest.raises(MalformedSource, match=rf"a\.jsonl, line 11: .*{why}") as told:
        read(path, "jsonl", ImportColumns(key="k", time="t"), size)
    assert told.value.line == 11


@pytest.mark.parametrize("size", [40, 10**9])
@pytest.mark.parametrize("line", ["1,2,3", "1", '"1,2'])
def test_a_bad_line_of_csv_is_told(tmp_path: Path, size: int, line: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("value,key\n" + "x,y\n" * 20 + line + "\nx,y\n")
    with pytest.raises(MalformedSource, match=r"a\.csv, line 22: "):
        read(path, "csv", size=size)


def test_files_that_are_not_of_their_format(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(MalformedSource, match=r"a\.parquet: it is no Parquet file"):
        read(tmp_path / "a.parquet", "parquet")
    (tmp_path / "a.csv").write_text("a,a\n")
    with pytest.raises(MalformedSource, match="twice"):
        read(tmp_path / "a.csv", "csv")


def test_columns_that_are_not_there_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [b"1"], "list": [[1]]}), path)
    with pytest.raises(InvalidArgument, match="--value"):
        read(path, "parquet")
    with pytest.raises(InvalidArgument, match="--key nothing: there is no such column, there are x, list"):
        read(path, "parquet", ImportColumns(value="x", key="nothing"))
    with pytest.raises(InvalidArgument, match="list<"):
        read(path, "parquet", ImportColumns(value="list"))
    with pytest.raises(InvalidArgument, match="--time-unit"):
        ImportColumns(time_unit="years")


def test_a_line_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 64)
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 256)
    path = tmp_path / "a.jsonl"
    path.write_text('{"v": 1}\n' + "x" * 1000 + "\n")
    with pytest.raises(MalformedSource, match="over 256 bytes"):
        read(path, "jsonl")


def test_the_files_of_a_directory(tmp_path: Path) -> None:
    for name in ("b.csv", "a/c.csv", "_a/d.csv", ".x.csv", "readme.txt", "_success"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("value\n")
    files, others = ImportSource(str(tmp_path)).files("csv")
    assert ([file.name for file in files], others) == (["a/c.csv", "b.csv"], 1)
    with pytest.raises(InvalidArgument, match=r"\.parquet"):
        ImportSource(str(tmp_path)).files("parquet")
    with pytest.raises(InvalidArgument, match="nosuchkind"):
        ImportSource("nosuchkind://x")
