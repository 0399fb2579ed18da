"""Rows of files as record batches with a stream's columns: Parquet, lines of JSON, CSV. No object is made per row.

A block of lines is parsed as a whole by Arrow. Only where that fails a block is read line by line, which finds the bad
line, or values that Arrow gives no columns for. It needs pyarrow, so import it only where there is a source. Calls
block. Not here: finding files and lines (`streams/maintain/import_sources.py`), how a row becomes a record
(`write/arrow_write.py`).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from typing import Any, BinaryIO, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from buckram.core.streams.external.imports import TIME_UNITS, ImportColumns, SourceFile
from buckram.errors import InvalidArgument, MalformedSource, ReadFailed
from buckram.streams.maintain.import_sources import Block, ImportSource, blocks, line_number

_BATCH_ROWS = 65_536
Step: TypeAlias = Callable[[], pa.RecordBatch | None]
"""Returns some rows; None if there are none."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = pa.timestamp("us", "UTC")
_SEEN = "\0"
"""A column that no object has: an explicit schema must have one, so that nothing else is inferred."""


def ranges_of(source: ImportSource, file: SourceFile, kind: str, range_bytes: int) -> int:
    """Return into how many ranges a file is cut; it depends on nothing but the file and `range_bytes`."""
    if kind != "parquet":
        return -(-file.size // range_bytes)
    with source.open(file) as opened:
        return len(_groups(_parquet(opened, source.path(file)), range_bytes))


def steps_of(
    source: ImportSource, file: SourceFile, kind: str, columns: ImportColumns, range_bytes: int, number: int
) -> Generator[Step, None, None]:
    """Yield what gives the rows of one range, step by step; the steps may be carried out at once, by several threads.

    Rows have the columns `value` and, where there are such, `key`, `timestamp`, `headers`. This, and the steps, raise
    MalformedSource, which names file and line, InvalidArgument for columns that are missing or do not fit, ReadFailed.
    """
    path = source.path(file)
    with source.open(file) as opened:
        if kind == "parquet":
            for batch in _parquet_rows(_parquet(opened, path), path, columns, range_bytes, number):
                yield partial(_itself, batch)
            return
        lines = _Json(source, file, columns) if kind == "jsonl" else _Csv(source, file, opened, columns)
        for block in blocks(opened, path, number * range_bytes, (number + 1) * range_bytes):
            yield partial(lines.rows, block)


def _itself(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


# -- Parquet ----------------------------------------------------------------------------------------------


def _parquet(opened: BinaryIO, path: str) -> Any:
    try:
        return pq.ParquetFile(opened)
    except (pa.ArrowException, ValueError) as error:
        raise MalformedSource(path, 0, f"it is no Parquet file: {error}") from None
    except OSError as error:
        raise ReadFailed(-1, f"{path} cannot be read: {error}") from None


def _groups(parquet: Any, range_bytes: int) -> list[list[int]]:
    """Return the row groups of each range: neighbours of together at least `range_bytes`, but for the last."""
    found: list[list[int]] = []
    size = range_bytes
    for group in range(parquet.metadata.num_row_groups):
        if size >= range_bytes:
            found.append([])
            size = 0
        found[-1].append(group)
        size += parquet.metadata.row_group(group).total_byte_size
    return found


def _parquet_rows(
    parquet: Any, path: str, columns: ImportColumns, range_bytes: int, number: int
) -> Iterator[pa.RecordBatch]:
    names = parquet.schema_arrow.names
    wanted = _chosen(path, names, columns)
    groups = _groups(parquet, range_bytes)[number]
    row = sum(parquet.metadata.row_group(group).num_rows for group in range(groups[0]))
    needed = list(dict.fromkeys(wanted.values()))
    try:
        for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, row_groups=groups, columns=needed, use_threads=False):
            at = row

            def place(index: int, at: int = at) -> int:
                return at + index + 1

            yield _batch(path, {what: batch.column(name) for what, name in wanted.items()}, columns, place, "row")
            row += batch.num_rows
    except pa.ArrowException as error:
        raise MalformedSource(path, row + 1, f"it cannot be decoded: {error}", "row") from None
    except OSError as error:
        raise MalformedSource(path, row + 1, f"it cannot be read: {error}", "row") from None


# -- lines ------------------------------------------------------------------------------------------------


class _Lines:
    """Common base of the formats of lines. Threads parse blocks at the same time."""

    def __init__(self, source: ImportSource, file: SourceFile) -> None:
        self._source, self._file, self._path = source, file, source.path(file)

    def _numbers(self, block: Block) -> Callable[[int], int]:
        """Return what gives the line number of a row of this block. Blank lines are no rows."""

        def number(row: int) -> int:
            with self._source.open(self._file) as opened:
                first = line_number(opened, self._path, block.start)
            places = [place for place, line in enumerate(block.data.split(b"\n")) if line.strip()]
            return first + places[row]

        return number

    def _malformed(self, block: Block, row: int, why: str) -> NoReturn:
        raise MalformedSource(self._path, self._numbers(block)(row), why)


class _Json(_Lines):
    """Lines that are JSON objects. Without a column for the value the line is the value."""

    def __init__(self, source: ImportSource, file: SourceFile, columns: ImportColumns) -> None:
        super().__init__(source, file)
        if columns.headers:
            raise InvalidArgument(f"{self._path}: --headers is for Parquet; lines of JSON have no column of that type")
        self._columns = columns
        named = {"value": columns.value, "key": columns.key, "timestamp": columns.time}
        self._fields = {what: field for what, field in named.items() if field}
        self._kinds: dict[str, pa.DataType] = dict.fromkeys(self._fields.values(), pa.string())

    def rows(self, block: Block) -> pa.RecordBatch | None:
        lines = _split(block.data)
        table = self._parsed(block)
        if table is None or table.num_rows != len(lines):
            lines = pa.array([line for line in lines.to_pylist() if line.strip()], pa.binary())
            found = self._one_by_one(block, lines)
        else:
            found = {what: _whole(table.column(field)) for what, field in self._fields.items()}
        if not len(lines):
            return None
        if "value" not in found:
            found["value"] = lines
        return _batch(self._path, found, self._columns, self._numbers(block), "line")

    def _parsed(self, block: Block) -> Any:
        """Return the fields of all lines, or None if Arrow cannot make columns of them."""
        fields = list(self._kinds)
        choices = [
            dict(zip(fields, kinds, strict=True)) for kinds in product((pa.string(), pa.int64()), repeat=len(fields))
        ]
        for kinds in (self._kinds, *choices):
            shape = pa.schema([*kinds.items(), (_SEEN, pa.null())])
            try:
                table = pa_json.read_json(
                    pa.BufferReader(block.data),
                    pa_json.ReadOptions(use_threads=False, block_size=len(block.data) + 1),
                    pa_json.ParseOptions(explicit_schema=shape, unexpected_field_behavior="ignore"),
                )
            except pa.ArrowException:
                continue
            self._kinds = kinds
            return table
        return None

    def _one_by_one(self, block: Block, lines: Any) -> dict[str, Any]:
        found: dict[str, list[str | None]] = {what: [] for what in self._fields}
        for row, line in enumerate(lines.to_pylist()):
            try:
                given = json.loads(line)
            except (ValueError, RecursionError) as error:
                self._malformed(block, row, f"it is no JSON: {error}")
            if self._fields and not isinstance(given, dict):
                self._malformed(block, row, "it is no JSON object, so it has no columns")
            for what, field in self._fields.items():
                item = given.get(field)
                found[what].append(item if item is None or isinstance(item, str) else json.dumps(item))
        try:
            return {what: pa.array(items, pa.string()) for what, items in found.items()}
        except UnicodeEncodeError:
            rows = zip(*found.values(), strict=True)
            bad = next(row for row, items in enumerate(rows) if any(item and not _is_utf8(item) for item in items))
            self._malformed(block, bad, "it has half of a surrogate pair, which is no text")


class _Csv(_Lines):
    """Lines of CSV; the first line of a file has the names. Values have no newlines."""

    def __init__(self, source: ImportSource, file: SourceFile, opened: BinaryIO, columns: ImportColumns) -> None:
        super().__init__(source, file)
        self._columns, path = columns, self._path
        first = next(blocks(opened, path, 0, 1), None)
        if first is None:
            raise MalformedSource(path, 1, "it is empty; the first line has the names of the columns")
        head, _, _ = first.data.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
        try:
            self._names: list[str] = next(csv.reader([head.decode().rstrip("\r")], strict=True), [])
        except (UnicodeDecodeError, csv.Error) as error:
            raise MalformedSource(path, 1, f"it has no names of columns: {error}") from None
        twice = {name for name in self._names if self._names.count(name) > 1}
        if twice:
            raise MalformedSource(path, 1, f"it names column {sorted(twice)[0]!r} twice")
        self._wanted = _chosen(path, self._names, columns)

    def rows(self, block: Block) -> pa.RecordBatch | None:
        if not block.start:
            skipped = block.data.find(b"\n") + 1
            block = Block(skipped, block.data[skipped:]) if skipped else Block(0, b"")
        if not block.data.strip():
            return None
        kinds = {name: pa.binary() for name in self._wanted.values()}
        if "timestamp" in self._wanted:
            kinds[self._wanted["timestamp"]] = pa.string()
        try:
            table = pa_csv.read_csv(
                pa.BufferReader(block.data),
                pa_csv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(block.data) + 1),
                pa_csv.ParseOptions(newlines_in_values=False),
                pa_csv.ConvertOptions(column_types=kinds, include_columns=list(kinds), strings_can_be_null=False),
            )
        except pa.ArrowException as error:
            self._find_bad(block, error)
        found = {what: _whole(table.column(name)) for what, name in self._wanted.items()}
        return _batch(self._path, found, self._columns, self._numbers(block), "line")

    def _find_bad(self, block: Block, error: Exception) -> NoReturn:
        row = 0
        for line in block.data.split(b"\n"):
            if not line.strip():
                continue
            try:
                fields = next(csv.reader([line.decode().rstrip("\r")], strict=True), [])
            except (UnicodeDecodeError, csv.Error) as why:
                self._malformed(block, row, f"it is no line of CSV: {why}")
            if len(fields) != len(self._names):
                self._malformed(block, row, f"it has {len(fields)} columns, the first line names {len(self._names)}")
            row += 1
        self._malformed(block, 0, f"it begins a block that cannot be parsed: {error}")


# -- columns ----------------------------------------------------------------------------------------------


def _chosen(path: str, names: Sequence[str], columns: ImportColumns) -> dict[str, str]:
    """Return the columns of a file by what they become. InvalidArgument for one that is not there."""
    found: dict[str, str] = {}
    usual = {"value": "value", "key": "key", "time": "timestamp", "headers": "headers"}
    for option, column in usual.items():
        given = getattr(columns, option)
        if given and given not in names:
            raise InvalidArgument(f"{path}: --{option} {given}: there is no such column, there are {', '.join(names)}")
        if given or column in names:
            found[column] = given or column
    if "value" not in found:
        raise InvalidArgument(
            f"{path}: has no column value; name the one with the values (--value COLUMN), there are {', '.join(names)}"
        )
    return found


def _batch(
    path: str, found: dict[str, Any], columns: ImportColumns, place: Callable[[int], int], what: str
) -> pa.RecordBatch:
    made: dict[str, Any] = {}
    for name, column in found.items():
        if name == "timestamp":
            made[name] = _times(path, column, TIME_UNITS[columns.time_unit], place, what)
        else:
            made[name] = column if name == "headers" else _as_bytes(path, name, column)
    return pa.RecordBatch.from_pydict(made)


def _as_bytes(path: str, name: str, column: Any) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _as_bytes(path, name, column.dictionary_decode())
    texts = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_temporal)
    if any(test(kind) for test in texts):
        return column.cast(pa.string())
    if pa.types.is_nested(kind):
        raise InvalidArgument(f"{path}: the column for the {name} is {kind}: needs bytes, text or numbers")
    return column


def _times(path: str, column: Any, unit: int, place: Callable[[int], int], what: str) -> Any:
    """Return times as microseconds UTC. MalformedSource names the row that has none."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column if kind.tz else column.cast(pa.timestamp(kind.unit, "UTC"))
    try:
        if pa.types.is_integer(kind):
            return pc.multiply_checked(column.cast(pa.int64()), unit).cast(_TIME)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return _parsed_times(column, unit)
    except pa.ArrowException:
        return _times_one_by_one(path, column, unit, place, what)
    raise InvalidArgument(
        f"{path}: the column for the time is {kind}: needs timestamps, whole numbers or ISO 8601 text"
    )


def _parsed_times(column: Any, unit: int) -> Any:
    """Return texts as times: with a zone, without one (UTC), or whole numbers. ArrowInvalid if they are not alike."""
    first = next((item.as_py() for item in column if item.is_valid and item.as_py()), "")
    if first.lstrip("-").isdigit():
        return pc.multiply_checked(column.cast(pa.int64()), unit).cast(_TIME)
    zoned = first.endswith("Z") or "+" in first[10:] or "-" in first[10:]
    return column.cast(_TIME) if zoned else column.cast(pa.timestamp("us")).cast(_TIME)


def _times_one_by_one(path: str, column: Any, unit: int, place: Callable[[int], int], what: str) -> Any:
    found: list[int | None] = []
    for row, given in enumerate(column.to_pylist()):
        try:
            found.append(None if given is None or given == "" else _microseconds(given, unit))
        except (ValueError, OverflowError):
            why = f"time {given!r}: needs ISO 8601 such as 2026-11-21T08:00:00Z, or a whole number"
            raise MalformedSource(path, place(row), why, what) from None
    return pa.array(found, pa.int64()).cast(_TIME)


def _microseconds(given: str | int, unit: int) -> int:
    if isinstance(given, int) or given.lstrip("-").isdigit():
        found = int(given) * unit
    else:
        time = datetime.fromisoformat(given)
        time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        found = (time - _EPOCH) // timedelta(microseconds=1)
    if not -(2**63) <= found < 2**63:
        raise ValueError("out of range")
    return found


def _split(data: bytes) -> Any:
    """Return the lines of a block as bytes, without those that are empty."""
    lines = pc.split_pattern(pa.array([data], pa.large_binary()), b"\n").flatten().cast(pa.binary())
    if b"\r" in data:
        lines = pc.ascii_rtrim(lines.view(pa.string()), "\r").view(pa.binary())
    lengths = pc.binary_length(lines)
    return lines if pc.min(lengths).as_py() else lines.filter(pc.greater(lengths, 0))


def _whole(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
