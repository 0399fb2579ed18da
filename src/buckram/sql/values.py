"""Python's values as parameters, and the type objects of DB-API 2.0."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from buckram.core.db.sql import Parameters, SqlValue
from buckram.errors import InvalidArgument


def to_sql(value: Any) -> SqlValue:
    """A value as SQLite has it. Times become text as ISO 8601 writes it. Raises InvalidArgument."""
    kind = type(value)
    if value is None or kind in (int, float, str, bytes):
        return value  # type: ignore[no-any-return]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    raise InvalidArgument(
        f"a parameter of type {kind.__name__}: needs None, int, float, str, bytes, date, time or datetime; convert it"
    )


def to_parameters(parameters: Sequence[Any] | Mapping[str, Any]) -> Parameters:
    """Convert parameters by position or by name. Raises InvalidArgument for a value that SQL has no type for, or a
    text in place of a sequence.
    """
    if isinstance(parameters, Mapping):
        return {name: to_sql(value) for name, value in parameters.items()}
    if isinstance(parameters, str | bytes):
        raise InvalidArgument(f"parameters {parameters!r}: needs a sequence of values, such as ({parameters!r},)")
    return tuple(to_sql(value) for value in parameters)


class TypeObject:
    """Equals the declared types of columns that hold such values: `cursor.description[0][1] == NUMBER`."""

    def __init__(self, name: str, *parts: str) -> None:
        self._name, self._parts = name, parts

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return any(part in other.upper() for part in self._parts)
        return self is other

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return self._name


STRING = TypeObject("STRING", "CHAR", "CLOB", "TEXT")
BINARY = TypeObject("BINARY", "BLOB", "BINARY")
NUMBER = TypeObject("NUMBER", "INT", "REAL", "FLOA", "DOUB", "NUMERIC", "DECIMAL", "BOOL")
DATETIME = TypeObject("DATETIME", "DATE", "TIME")
ROWID = TypeObject("ROWID", "INTEGER PRIMARY KEY")
