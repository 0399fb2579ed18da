"""Arrow IPC streams in bodies and answers. pyarrow is imported at its first use.

A body is untrusted: its buffers are checked before they are used, and whatever could expand when it is read
(compression, dictionaries, views, rows without bytes) is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from buckram.core.streams.records.batch import Batch
from buckram.errors import ConfigError
from buckram.extras import needs
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.http.problems import HttpProblem
from buckram.serve.json_views.records import Rows
from buckram.streams.shared.arrow_batches import schema, to_arrow

_KNOWN = ("value", "key", "headers", "timestamp")
_COMPRESSION = 3
"""Number of the field for compression in the header of an IPC record batch."""


def rows_of_arrow(raw: bytes) -> Rows:
    """The records of an Arrow IPC stream. Raises HttpProblem 400 for anything else, and 501 without pyarrow."""
    arrow = _arrow()
    rows = Rows()
    try:
        for batch in _batches(arrow, raw):
            _add(arrow, rows, batch)
    except (arrow.ArrowException, ValueError, OSError, struct.error) as error:
        raise _bad(f"is no Arrow IPC stream: {error}") from None
    return rows


def rendered_arrow(batches: Sequence[Batch]) -> bytes:
    """Records as an Arrow IPC stream, a record batch for each entry."""
    arrow = _arrow()
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, schema()) as writer:
        for batch in batches:
            writer.write_batch(to_arrow(batch))
    return bytes(sink.getvalue())


def _batches(arrow: Any, raw: bytes) -> Any:
    """The record batches, each once it is known that its buffers are not compressed."""
    messages = arrow.ipc.MessageReader.open_stream(raw)
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            break
        if message.type == "dictionary":
            raise _bad("has dictionaries: send plain columns")
        if message.type == "record batch" and _is_compressed(bytes(message.metadata)):
            raise _bad("is compressed: send it uncompressed")
    return arrow.ipc.open_stream(raw)


def _add(arrow: Any, rows: Rows, batch: Any) -> None:
    names = [field.name for field in batch.schema]
    columns = {name: batch.column(names.index(name)) for name in _KNOWN if name in names}
    if "value" not in columns:
        raise _bad(f"has no column value: there are {', '.join(names) or 'none'}")
    for name, column in columns.items():
        if not _fits(arrow, name, column.type):
            raise _bad(f"has a column {name} of type {column.type}: cast it to {_NEEDS[name]}")
        column.validate(full=True)
    before, count = len(rows.values), batch.num_rows
    rows.values += columns["value"].cast(arrow.binary()).to_pylist()
    _extend(rows.keys, _bytes(arrow, columns.get("key")), before, count)
    _extend(rows.headers, _headers(columns.get("headers")), before, count)
    _extend(rows.timestamps, _times(arrow, columns.get("timestamp")), before, count)
    rows.txids += [None] * count


def _extend(column: list[Any], found: list[Any] | None, before: int, count: int) -> None:
    assert len(column) == before
    column += [None] * count if found is None else found


def _bytes(arrow: Any, column: Any) -> list[Any] | None:
    return None if column is None else list(column.cast(arrow.binary()).to_pylist())


def _times(arrow: Any, column: Any) -> list[Any] | None:
    if column is None:
        return None
    exact = column.cast(arrow.timestamp("us", column.type.tz), safe=column.type.unit != "ns")
    return list(exact.cast(arrow.int64()).to_pylist())


def _headers(column: Any) -> list[Any] | None:
    if column is None:
        return None
    found: list[Any] = []
    for row in column.to_pylist():
        pairs = [(_text(one and one["key"]), _binary(one and one["value"])) for one in row or ()]
        found.append(pairs or None)
    return found


def _text(name: object) -> str:
    if name is None:
        raise _bad("has a header without a key: filter those out")
    return name.decode() if isinstance(name, bytes) else str(name)


def _binary(value: object) -> bytes:
    if value is None:
        raise _bad("has a header without a value: filter those out")
    return value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[call-overload]


_NEEDS = {
    "value": "binary",
    "key": "binary",
    "timestamp": "timestamp",
    "headers": "a list of structs of key and value",
}


def _fits(arrow: Any, name: str, kind: Any) -> bool:
    """Return whether a column's values take bytes of their own, so that rows cannot be larger than the body."""
    types = arrow.types
    if name == "timestamp":
        return bool(types.is_timestamp(kind))
    if name == "headers":
        if not types.is_list(kind) or not types.is_struct(kind.value_type) or kind.value_type.num_fields != 2:
            return False
        fields = [kind.value_type.field(place) for place in range(2)]
        return [one.name for one in fields] == ["key", "value"] and all(_is_bytes(types, one.type) for one in fields)
    return _is_bytes(types, kind)


def _is_bytes(types: Any, kind: Any) -> bool:
    tests = (types.is_binary, types.is_string, types.is_large_binary, types.is_large_string)
    return any(test(kind) for test in tests)


def _is_compressed(metadata: bytes) -> bool:
    """Return whether an IPC message (a Message in flatbuffers) declares its record batch's buffers compressed."""
    (message,) = struct.unpack_from("<I", metadata, 0)
    header = _field(metadata, message, 2)
    if header is None:
        return False
    (offset,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + offset, _COMPRESSION) is not None


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return the position of a field of a flatbuffers table; None if the table lacks it."""
    (back,) = struct.unpack_from("<i", data, table)
    (size,) = struct.unpack_from("<H", data, table - back)
    if 4 + 2 * number >= size:
        return None
    (place,) = struct.unpack_from("<H", data, table - back + 4 + 2 * number)
    return table + int(place) if place else None


def _bad(why: str) -> HttpProblem:
    return bad_request(f"the body {why}; nothing of it was written")


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise ConfigError(needs("a body of Arrow in the gateway", "arrow")) from None
    return pyarrow
