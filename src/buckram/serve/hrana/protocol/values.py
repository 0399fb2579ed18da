"""Values of SQL as JSON of the Hrana protocol, and back."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from typing import Any

from buckram.core.db.sql import SqlValue

INT64 = 1 << 63
_NULL = {"type": "null"}


class Malformed(ValueError):
    """The request violates the protocol; the text names the place."""


class NotRepresentable(ValueError):
    """JSON cannot represent this value."""


def encode_value(value: SqlValue) -> dict[str, Any]:
    """A value as JSON. Integers are strings there, because many programs take every number for a float."""
    if value is None:
        return _NULL
    kind = type(value)
    if kind is str:
        return {"type": "text", "value": value}
    if kind is int:
        return {"type": "integer", "value": str(value)}
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotRepresentable(f"a column has the value {value}, for which JSON has no number: cast it to text")
        return {"type": "float", "value": value}
    if isinstance(value, bytes):
        return {"type": "blob", "base64": base64.b64encode(value).rstrip(b"=").decode()}
    raise TypeError(f"no value of SQL: {kind.__name__}")


def encode_rows(rows: Sequence[Sequence[SqlValue]]) -> list[list[dict[str, Any]]]:
    return [[encode_value(value) for value in row] for row in rows]


def decode_value(raw: Any, where: str) -> SqlValue:
    """The value of an argument. Raises Malformed, which names the place `where` it stands."""
    if not isinstance(raw, dict):
        raise Malformed(f'{where}: needs an object such as {{"type": "null"}}')
    kind, value = raw.get("type"), raw.get("value")
    if kind == "null":
        return None
    if kind == "text" and isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Malformed(f"{where}: the text has half of a surrogate pair, which UTF-8 cannot have") from None
        return value
    if kind == "integer":
        return _integer(value, where)
    if kind == "float" and isinstance(value, float | int) and not isinstance(value, bool):
        return float(value)
    if kind == "blob" and isinstance(raw.get("base64"), str):
        text = raw["base64"].rstrip("=")
        try:
            return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise Malformed(f"{where}: the blob is not base64") from None
    raise Malformed(f"{where}: type {kind!r} with this value is none of null, integer, float, text and blob")


def _integer(value: Any, where: str) -> int:
    if isinstance(value, str) and len(value) <= 20 and value.isascii():
        digits = value[1:] if value[:1] == "-" else value
        if digits.isdigit():
            value = int(value)
    if type(value) is not int:
        raise Malformed(f"{where}: needs an integer as a string of decimal digits")
    if not -INT64 <= value < INT64:
        raise Malformed(f"{where}: {value} does not fit into 64 bits with a sign")
    return value


__all__ = ["Malformed", "NotRepresentable", "SqlValue", "decode_value", "encode_rows", "encode_value"]
