"""Changes: what a transaction did to rows, as bytes beside its group in the same record of the log, and as values.

Only databases that were made with change data capture have them. Groups carry pages, for replicas; changes carry rows,
for programs that follow a database without being a replica. Not here: noting them
(`state/db/table_engine/row_images.py`), reading them from the log (`state/db/commits/changes.py`).
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from buckram.core.db.group import CHANGED, FORMAT
from buckram.core.db.sql import SqlValue
from buckram.core.streams.records.codecs import NONE, ZSTD, Codec
from buckram.errors import MalformedBatch, UnknownCommand

_HEAD = struct.Struct(">BBBII")
_LEAST_COMPRESSED = 100
_OPERATIONS = ("insert", "update", "delete")
Row = tuple[SqlValue, ...]


class TableShape(NamedTuple):
    """A table at the moment of a change: its columns without those that are computed, and those of its primary key."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    has_rowid: bool


class RowChange(NamedTuple):
    """Change of one row. `rowid` is that before an update or deletion, `moved_to` that after an update."""

    operation: int
    table: TableShape
    rowid: int
    moved_to: int
    old: Row | None
    new: Row | None


class SchemaChange(NamedTuple):
    """A statement that changed the schema, or VACUUM."""

    sql: str


Noted = RowChange | SchemaChange


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one row, or of the schema, by a committed transaction; from `db.changes()`."""

    offset: int
    """Offset of the transaction in the log: `after=offset` goes on behind it."""
    transaction: int
    """The number of the transaction, of all transactions of the database."""
    time: float
    """Time of the commit, by the time of the log: seconds UTC."""
    last: bool
    """True for the last change of its transaction."""
    operation: Literal["insert", "update", "delete", "schema"]
    """Kind of the change."""
    table: str = ""
    """The table; empty for the schema."""
    key: dict[str, SqlValue] | None = None
    """The primary key of the row, before an update; empty where the table has none, and the row id tells rows apart."""
    rowid: int | None = None
    """The row id, before an update; None where the table has none."""
    new_rowid: int | None = None
    """The row id after an insertion or update."""
    old: dict[str, SqlValue] | None = None
    """The values before an update or deletion, without those of generated columns."""
    new: dict[str, SqlValue] | None = None
    """The values after an insertion or update."""
    sql: str | None = None
    """The statement that changed the schema; VACUUM may give other row ids to tables without a primary key."""


# -- as bytes ----------------------------------------------------------------------------------------------------------


def joined(changes: Sequence[Noted], group: bytes, zstd: Codec) -> bytes:
    """Return a group with its changes before it."""
    tables: dict[TableShape, int] = {}
    rows: list[Any] = []
    for one in changes:
        if isinstance(one, SchemaChange):
            rows.append([one.sql])
            continue
        table = tables.setdefault(one.table, len(tables))
        rows.append([one.operation, table, one.rowid, one.moved_to, _plain(one.old), _plain(one.new)])
    body = json.dumps([list(tables), rows], separators=(",", ":"), ensure_ascii=False).encode()
    codec, size = NONE, len(body)
    if size >= _LEAST_COMPRESSED and len(packed := zstd.compress(body)) < size:
        codec, body = ZSTD, packed
    return _HEAD.pack(FORMAT, CHANGED, codec, len(body), size) + body + group


def separated(payload: bytes) -> tuple[bytes, bytes]:
    """Return the bytes of the changes, which a group alone has none of, and the group. Raises UnknownCommand for a cut
    one.
    """
    if payload[1] != CHANGED:
        return b"", payload
    try:
        end = _HEAD.size + _HEAD.unpack_from(payload)[3]
    except struct.error as error:
        raise UnknownCommand(f"the changes of a transaction are cut: {error}") from error
    return payload[:end], payload[end:]


def decode_changes(changes: bytes, zstd: Codec) -> list[Noted]:
    """Parse the changes that `joined` was given. Raises UnknownCommand for anything else."""
    try:
        _, _, codec, length, size = _HEAD.unpack_from(changes)
        body = changes[_HEAD.size : _HEAD.size + length]
        if codec not in (NONE, ZSTD) or len(body) != length:
            raise ValueError(f"codec {codec}, {len(body)} of {length} bytes")
        tables, rows = json.loads(body if codec == NONE else zstd.decompress(body, size))
        shapes = [TableShape(name, tuple(columns), tuple(key), rowid) for name, columns, key, rowid in tables]
        return [_noted(row, shapes) for row in rows]
    except (struct.error, ValueError, TypeError, IndexError, MalformedBatch) as error:
        raise UnknownCommand(f"the changes of a transaction are malformed: {error}") from error


def _noted(row: list[Any], shapes: Sequence[TableShape]) -> Noted:
    if len(row) == 1:
        return SchemaChange(row[0])
    operation, table, rowid, moved_to, old, new = row
    return RowChange(operation, shapes[table], rowid, moved_to, _values(old), _values(new))


def _plain(row: Row | None) -> list[Any] | None:
    """Return a row for JSON, in which bytes are a list of one base64 text."""
    if row is None:
        return None
    return [[base64.b64encode(value).decode()] if isinstance(value, bytes) else value for value in row]


def _values(row: list[Any] | None) -> Row | None:
    if row is None:
        return None
    return tuple(base64.b64decode(value[0]) if isinstance(value, list) else value for value in row)


# -- as values ---------------------------------------------------------------------------------------------------------

INSERT, UPDATE, DELETE = range(3)


def as_changes(noted: Sequence[Noted], offset: int, transaction: int, time: float) -> Iterator[Change]:
    """Return the changes of one transaction, for programs."""
    for number, one in enumerate(noted, 1):
        last = number == len(noted)
        if isinstance(one, SchemaChange):
            yield Change(offset, transaction, time, last, "schema", sql=one.sql)
            continue
        shape = one.table
        old, new = _named(shape, one.old), _named(shape, one.new)
        before = old if old is not None else new or {}
        yield Change(
            offset,
            transaction,
            time,
            last,
            _OPERATIONS[one.operation],  # type: ignore[arg-type]  # one of the four
            shape.name,
            {column: before[column] for column in shape.key},
            one.rowid if shape.has_rowid else None,
            one.moved_to if shape.has_rowid and new is not None else None,
            old,
            new,
        )


def _named(shape: TableShape, row: Row | None) -> dict[str, SqlValue] | None:
    return None if row is None else dict(zip(shape.columns, row, strict=True))
