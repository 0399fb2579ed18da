"""Records of streams as lines of JSON, and lines of input as records.

A line of input is a plain value, a key and a value around a separator, or a JSON object. Nothing is written to a stream
here.
"""

from __future__ import annotations

import base64
import binascii
import json
from binascii import b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from buckram.core.streams.records.batch import Record
from buckram.core.streams.records.record_format import headers_size
from buckram.errors import InvalidArgument

_JSON_FIELDS = ("value", "value_base64", "key", "key_base64", "headers", "headers_base64", "timestamp_us", "txid")
_IGNORED_FIELDS = ("offset", "append_time_us", "producer", "sequence")


# -- records as lines -------------------------------------------------------------------------------------


def record_line(record: Record) -> str:
    """Return a record as a line of JSON: the bytes of json.dumps, but much faster for records of a value and maybe a
    key.
    """
    offset, value, key, headers, timestamp, append_time, txid, producer, _ = record
    if headers or txid is not None or producer is not None:
        return json.dumps(record_json(record)) + "\n"
    key_text = "null" if key is None else f'"{b2a_base64(key, newline=False).decode()}"'
    text = "null" if value is None else f'"{b2a_base64(value, newline=False).decode()}"'
    return (
        f'{{"offset": {offset}, "timestamp_us": {timestamp}, "append_time_us": {append_time}, '
        f'"key_base64": {key_text}, "value_base64": {text}}}\n'
    )


def record_json(record: Record) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "offset": record.offset,
        "timestamp_us": record.timestamp,
        "append_time_us": record.append_time,
        "key_base64": _coded(record.key),
        "value_base64": _coded(record.value),
    }
    if record.headers:
        texts = {name: _utf8_or_none(value) for name, value in record.headers}
        shown["headers"] = {name: text for name, text in texts.items() if text is not None}
        others = {name: _coded(value) for name, value in record.headers if texts[name] is None}
        shown |= {"headers_base64": others} if others else {}
    if record.txid is not None:
        shown["txid"] = record.txid
    if record.producer is not None:
        shown |= {"producer": record.producer, "sequence": record.sequence}
    return shown


def _utf8_or_none(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _coded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


# -- lines as records -------------------------------------------------------------------------------------


class BadLine(InvalidArgument):
    """A line that cannot be a record. Those before it are written."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line} of the input {message}; the {line - 1} lines before it are in the stream")
        self.line, self.why = line, message


@dataclass(slots=True)
class Rows:
    """Records in columns, as append_many takes them."""

    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    headers: list[dict[str, bytes] | None] = field(default_factory=list)
    timestamps: list[int | None] = field(default_factory=list)
    txids: list[int | None] = field(default_factory=list)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for append_many; columns that hold no value are left out."""
        columns: dict[str, Sequence[object]] = {
            "keys": self.keys,
            "headers": self.headers,
            "timestamps": self.timestamps,
            "txids": self.txids,
        }
        arguments: dict[str, Any] = {"values": self.values}
        for name, column in columns.items():
            if column.count(None) < len(column):
                arguments[name] = column
        return arguments


class Parsed(NamedTuple):
    """Records of the lines before the first bad one, and `bad`, the error of that one."""

    rows: Rows
    bad: BadLine | None = None


@dataclass(frozen=True, slots=True)
class PlainLines:
    """A line is a value; with a separator, what stands before its first occurrence is the key."""

    separator: bytes | None
    one_by_one: ClassVar[bool] = False

    def parse(self, lines: Sequence[bytes], first: int, limit: int) -> Parsed:
        """`first`: number of the first line; `limit`: bytes of a record."""
        bad = None
        if max(map(len, lines), default=0) > limit:
            at, line = next((n, line) for n, line in enumerate(lines) if len(line) > limit)
            bad = BadLine(first + at, f"has {len(line)} bytes or more, a record may have {limit}: split it")
            lines = lines[:at]
        if self.separator is None:
            return Parsed(Rows(list(lines)), bad)
        cut = [line.partition(self.separator) for line in lines]
        values: list[bytes | None] = [value if found else key for key, found, value in cut]
        return Parsed(Rows(values, [key if found else None for key, found, _ in cut]), bad)


@dataclass(frozen=True, slots=True)
class JsonLines:
    """A line is an object: value or value_base64, and optionally key or key_base64, headers, timestamp_us, txid.

    Blank lines are passed over.
    """

    one_by_one: ClassVar[bool] = True
    """True if an error in a line may come out as late as when it is appended; then one batch is in flight at a time."""

    def parse(self, lines: Sequence[bytes], first: int, limit: int) -> Parsed:
        rows = Rows()
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            try:
                raw = json.loads(line)
                if not isinstance(raw, dict):
                    raise InvalidArgument(f"is a JSON {type(raw).__name__}, not an object")
                _add(rows, raw, limit)
            except (ValueError, RecursionError) as error:
                what = str(error) if isinstance(error, InvalidArgument) else f"is not JSON: {error}"
                return Parsed(rows, BadLine(number, what))
        return Parsed(rows)


def _add(rows: Rows, raw: dict[str, Any], limit: int) -> None:
    unknown = [name for name in raw if name not in _JSON_FIELDS and name not in _IGNORED_FIELDS]
    if unknown:
        raise InvalidArgument(f"has an unknown field {unknown[0]!r}; known: {', '.join(_JSON_FIELDS)}")
    if "value" not in raw and "value_base64" not in raw:
        raise InvalidArgument("has neither value nor value_base64")
    value, key, headers = _binary(raw, "value"), _binary(raw, "key"), _headers(raw)
    timestamp, txid = _whole(raw, "timestamp_us"), _whole(raw, "txid")
    size = len(value or b"") + len(key or b"") + headers_size(tuple((headers or {}).items()))
    if size > limit:
        raise InvalidArgument(f"is a record of {size} bytes, the limit is {limit}: split it")
    if txid is not None and not 0 <= txid < 2**63:
        raise InvalidArgument(f"has txid {txid}: needs a number from 0 to 2**63-1")
    rows.values.append(value)
    rows.keys.append(key)
    rows.headers.append(headers)
    rows.timestamps.append(timestamp)
    rows.txids.append(txid)


def _headers(raw: dict[str, Any]) -> dict[str, bytes] | None:
    texts, coded = raw.get("headers") or {}, raw.get("headers_base64") or {}
    if not isinstance(texts, dict) or not isinstance(coded, dict):
        raise InvalidArgument("has headers that are no object of names and texts")
    found = {name: _text("a header", value) for name, value in texts.items()}
    found |= {name: _decoded("headers_base64", value) for name, value in coded.items()}
    return found or None


def _binary(raw: dict[str, Any], name: str) -> bytes | None:
    coded, value = raw.get(f"{name}_base64"), raw.get(name)
    if coded is None:
        return None if value is None else _text(name, value)
    if value is not None:
        raise InvalidArgument(f"has {name} and {name}_base64; give one of them")
    return _decoded(f"{name}_base64", coded)


def _decoded(name: str, coded: object) -> bytes:
    if not isinstance(coded, str):
        raise InvalidArgument(f"has {name} that is no text but {type(coded).__name__}")
    try:
        return base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(f"has a bad {name}: {error}") from None


def _text(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise InvalidArgument(f"has {name} that is no text but {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"has {name} that is no UTF-8: {error}; use {name}_base64") from None


def _whole(raw: dict[str, Any], name: str) -> int | None:
    value = raw.get(name)
    if value is not None and type(value) is not int:
        raise InvalidArgument(f"has {name} {value!r}: needs a whole number")
    return value
