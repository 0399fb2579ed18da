"""The table around history: versions follow one another, and what no version needs is deleted."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyiceberg")

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable

from buckram.core.streams.external.history import part_file
from buckram.errors import CorruptEntry
from buckram.streams.maintain.history import iceberg
from buckram.streams.maintain.history.iceberg import HistoryTable, TableMoved
from buckram.streams.shared.history_parts import HISTORY_SCHEMA
from buckram.streams.shared.locations import TABLE, FileLocation

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def part(folder: Path, copy: int, base: int, records: int = 3) -> str:
    """Write a part and return its name."""
    file = part_file(base, copy, 0)
    rows = [
        {"offset": base + row, "value": b"%d" % row, "timestamp": NOW, "append_time": NOW} for row in range(records)
    ]
    pq.write_table(pa.Table.from_pylist(rows, HISTORY_SCHEMA), folder / file)
    return file


def offsets(folder: Path) -> list[int]:
    found: list[int] = StaticTable.from_metadata(f"{folder}/{TABLE}").scan().to_arrow().column("offset").to_pylist()
    return sorted(found)


def metadata(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / TABLE / "metadata").iterdir())


def test_snapshots_follow_one_another(tmp_path: Path) -> None:
    assert not HistoryTable(str(tmp_path)).exists
    HistoryTable(str(tmp_path)).commit([part(tmp_path, 7, 0)], [])
    table = HistoryTable(str(tmp_path))
    assert table.exists
    assert list(table.files) == [7]
    table.commit([part(tmp_path, 8, 3)], [])
    assert offsets(tmp_path) == [0, 1, 2, 3, 4, 5]
    HistoryTable(str(tmp_path)).commit([part(tmp_path, 9, 6)], [7])
    assert offsets(tmp_path) == [3, 4, 5, 6, 7, 8]
    newest = StaticTable.from_metadata(f"{tmp_path}/{TABLE}")
    assert len(newest.metadata.snapshots) == 1, "older snapshots name deleted files"


def test_of_two_commits_at_once_one_begins_anew(tmp_path: Path) -> None:
    HistoryTable(str(tmp_path)).commit([part(tmp_path, 7, 0)], [])
    first, second = HistoryTable(str(tmp_path)), HistoryTable(str(tmp_path))
    first.commit([part(tmp_path, 8, 3)], [])
    with pytest.raises(TableMoved):
        second.commit([part(tmp_path, 9, 6)], [])
    assert offsets(tmp_path) == [0, 1, 2, 3, 4, 5]
    HistoryTable(str(tmp_path)).commit([part(tmp_path, 9, 6)], [])
    assert offsets(tmp_path) == list(range(9))


def test_a_hint_that_is_behind_is_no_matter(tmp_path: Path) -> None:
    HistoryTable(str(tmp_path)).commit([part(tmp_path, 7, 0)], [])
    HistoryTable(str(tmp_path)).commit([part(tmp_path, 8, 3)], [])
    hint = tmp_path / TABLE / "metadata" / "version-hint.text"
    for told in ("1", "", "nonsense"):
        hint.write_text(told)
        assert sorted(HistoryTable(str(tmp_path)).files) == [7, 8]
    hint.unlink()
    HistoryTable(str(tmp_path)).commit([part(tmp_path, 9, 6)], [])
    assert hint.read_text() == "3"


def test_what_no_version_needs_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "_KEPT_SNAPSHOTS", 3)
    HistoryTable(str(tmp_path)).commit([part(tmp_path, 7, 0)], [])
    for name in ("snap-1-left-by-a-crash.avro", "left-by-a-crash-m0.avro"):
        (tmp_path / TABLE / "metadata" / name).write_bytes(b"x")
    HistoryTable(str(tmp_path)).commit([part(tmp_path, 8, 3)], [])
    assert "snap-1-left-by-a-crash.avro" not in metadata(tmp_path)
    for number in range(4):
        HistoryTable(str(tmp_path)).commit([part(tmp_path, 10 + number, 6 + number, 1)], [])
    assert "left-by-a-crash-m0.avro" not in metadata(tmp_path)
    newest = StaticTable.from_metadata(f"{tmp_path}/{TABLE}")
    lists = [name for name in metadata(tmp_path) if name.startswith("snap-")]
    assert len(newest.metadata.snapshots) == len(lists) == 3
    assert offsets(tmp_path) == list(range(10))


def test_a_table_anywhere(tmp_path: Path) -> None:
    directory = f"memory://{tmp_path}/uid"
    file = part(tmp_path, 7, 0)
    FileLocation(directory).write(file, (tmp_path / file).read_bytes(), 7)
    HistoryTable(directory).commit([file], [])
    table = HistoryTable(directory)
    assert list(table.files) == [7]
    stale = HistoryTable(directory)
    table.commit([], [7])
    with pytest.raises(TableMoved):
        stale.commit([], [7])
    FileLocation(table.location).clear()
    assert not HistoryTable(directory).exists


def test_metadata_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    HistoryTable(str(tmp_path)).commit([part(tmp_path, 7, 0)], [])
    (tmp_path / TABLE / "metadata" / "v1.metadata.json").write_text("{}")
    with pytest.raises(CorruptEntry, match=r"v1\.metadata\.json"):
        HistoryTable(str(tmp_path))


@pytest.mark.parametrize("what", ["manifest-list", "location"])
def test_a_table_names_no_file_elsewhere(tmp_path: Path, what: str) -> None:
    """Whoever can write one file of history has no server read or write others for him."""
    history, elsewhere = tmp_path / "history", tmp_path / "elsewhere"
    history.mkdir()
    (elsewhere / "metadata").mkdir(parents=True)
    HistoryTable(str(history)).commit([part(history, 7, 0)], [])
    file = history / TABLE / "metadata" / "v1.metadata.json"
    said = json.loads(file.read_text())
    if what == "location":
        said["location"] = str(elsewhere)
    else:
        listed = Path(said["snapshots"][0]["manifest-list"])
        listed.rename(elsewhere / listed.name)
        said["snapshots"][0]["manifest-list"] = str(elsewhere / listed.name)
    file.write_text(json.dumps(said))
    with pytest.raises(CorruptEntry, match=r"elsewhere.*no file of it"):
        HistoryTable(str(history)).commit([part(history, 8, 3)], [])
    assert list((elsewhere / "metadata").iterdir()) == []
