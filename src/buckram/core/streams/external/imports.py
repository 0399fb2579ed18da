"""Imports into a stream, the pure part: the order of what is imported, and the record that proves it has not changed.

A source is a list of files in the order of their names. Each file is cut into ranges, and each range is one version of
a transaction: the number of the file and that of the range in it. The record of the import says which files had which
numbers, so a file that comes between others, changes or goes is noticed before anything is imported twice or left out;
files that come after the last one are imported by the next run. Pure. Not here: reading files
(`streams/maintain/import_sources.py`, `streams/maintain/import_source_rows.py`), writing and publishing
(`streams/maintain/imports.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from buckram.core.streams.json_values import is_int64
from buckram.errors import InvalidArgument, MalformedRecord

FORMAT = 1
FORMATS = ("parquet", "jsonl", "csv")
TIME_UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}
"""Microseconds of each unit of time."""
RANGE_BYTES = 128 * 1024 * 1024
"""Approximate bytes of a file in one range, which becomes one ledger and one transaction."""
MAX_FILES = 30_000
"""The most files of one import: their marks must fit into one value of every metadata store."""
_RANGE_BITS = 32


class SourceFile(NamedTuple):
    """One file of a source: its name below the source, and its size in bytes."""

    name: str
    size: int

    @property
    def mark(self) -> str:
        """Return the mark of the file in the import's record: 12 hexadecimal digits of a hash of size and name."""
        return hashlib.sha256(f"{self.size} {self.name}".encode()).hexdigest()[:12]


class ImportPosition(NamedTuple):
    """A range of a source: the number of its file, and its own in that file."""

    file: int
    range: int

    @property
    def version(self) -> int:
        """Return the transaction's version, which grows from range to range."""
        return self.file << _RANGE_BITS | self.range


def position_of(version: int) -> ImportPosition:
    """Return the range that a version is of."""
    return ImportPosition(version >> _RANGE_BITS, version & ((1 << _RANGE_BITS) - 1))


@dataclass(frozen=True, slots=True)
class ImportColumns:
    """Columns of a source for each part of a record. Empty: the column of the usual name if there is one, otherwise
    none.

    Lines of JSON without a column for the value are values themselves.
    """

    value: str = ""
    key: str = ""
    time: str = ""
    headers: str = ""
    time_unit: str = "us"
    """Unit of times that are whole numbers: s, ms or us."""

    def __post_init__(self) -> None:
        if self.time_unit not in TIME_UNITS:
            raise InvalidArgument(f"--time-unit {self.time_unit!r}: choose one of {', '.join(TIME_UNITS)}")


@dataclass(frozen=True, slots=True)
class Import:
    """Record of an import: its source and settings, and how far it is. `version` is that of its key; -1: the key does
    not exist.
    """

    source: str
    format: str
    columns: ImportColumns
    range_bytes: int = RANGE_BYTES
    marks: tuple[str, ...] = ()
    done: int = -1
    """The version of the last range that is certainly published; the stream's transaction may say a later one."""
    version: int = -1


def application_of(source: str, run: str = "") -> str:
    """Return the application of an import. `run` tells imports of the same source from each other."""
    return f"import {hashlib.sha256(f'{run} {source}'.encode()).hexdigest()[:24]}"


def key_of(application: str) -> str:
    """Return the name of the key of an import's record."""
    return application.removeprefix("import ")


def continued(known: Import, given: Import, files: Sequence[SourceFile], done: int) -> Import:
    """Return the record for a run that goes on after version `done`. InvalidArgument if the source is another one now.

    `given` has the caller's settings, `known` the record as it was stored.
    """
    name = given.source
    if (known.format, known.columns) != (given.format, given.columns):
        raise InvalidArgument(
            f"{name}: was imported as {known.format} with {_shown(known.columns)} before; go on with the same options, "
            "or import it once more under another name (--run NAME)"
        )
    begun = position_of(done).file + 1 if done >= 0 else 0
    for number, mark in enumerate(known.marks[:begun]):
        file = files[number] if number < len(files) else None
        if file is None or file.mark != mark:
            there = f"{file.name} ({file.size} bytes)" if file is not None else "nothing"
            raise InvalidArgument(
                f"{name}: file {number + 1} of {begun} that were imported has changed, was removed, or another one "
                f"came before it: there is {there} now; put it back, or import what is new from a place of its own"
            )
    return replace(known, marks=marks_of(name, files), done=max(done, known.done))


def marks_of(source: str, files: Sequence[SourceFile]) -> tuple[str, ...]:
    """Return the marks of all files. InvalidArgument if there are too many."""
    if len(files) > MAX_FILES:
        raise InvalidArgument(
            f"{source}: has {len(files)} files, the limit of one import is {MAX_FILES}; import its directories one "
            "by one"
        )
    return tuple(file.mark for file in files)


def encode_import(record: Import) -> bytes:
    columns = record.columns
    return json.dumps(
        {
            "format": FORMAT,
            "source": record.source,
            "kind": record.format,
            "columns": [columns.value, columns.key, columns.time, columns.headers, columns.time_unit],
            "range_bytes": record.range_bytes,
            "marks": "".join(record.marks),
            "done": record.done,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


def decode_import(key: str, data: bytes, version: int) -> Import:
    """Return the record of an import. MalformedRecord names the key."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            raise MalformedRecord(f"{key}: format {raw['format']!r}, this version of buckram knows {FORMAT}")
        if not is_int64(raw["range_bytes"]) or not is_int64(raw["done"]):
            raise TypeError("a number is none")
        marks = str(raw["marks"])
        return Import(
            str(raw["source"]),
            str(raw["kind"]),
            ImportColumns(*map(str, raw["columns"])),
            raw["range_bytes"],
            tuple(marks[at : at + 12] for at in range(0, len(marks), 12)),
            raw["done"],
            version,
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecord(f"{key}: not the record of an import ({error!r}); restore it from a backup") from None


def _shown(columns: ImportColumns) -> str:
    named = {"value": columns.value, "key": columns.key, "time": columns.time, "headers": columns.headers}
    options = [f"--{option} {column}" for option, column in named.items() if column]
    if columns.time_unit != "us":
        options.append(f"--time-unit {columns.time_unit}")
    return " ".join(options) or "no columns named"
