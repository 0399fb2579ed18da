"""Exceptions and type objects of DB-API 2.0, and values as parameters: all that it asks for beside connections and
cursors.

The error of Buckram that an exception stands for is its `__cause__`.
"""

from __future__ import annotations

import builtins
import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

from buckram import errors
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


class Warning(builtins.Warning):
    """Base of warnings, required by DB-API 2.0; nothing here raises one."""


class Error(Exception):
    """Base of all errors of the module."""

    sqlite_errorcode: int | None = None
    """Extended result code of SQLite, named as in Python's sqlite3; None if the error is not SQLite's."""
    sqlite_errorname: str | None = None
    """Name of that code, such as SQLITE_CONSTRAINT_UNIQUE."""


class InterfaceError(Error):
    """The connection or cursor is closed, or cannot be used here."""


class DatabaseError(Error):
    """An error of the database."""


class DataError(DatabaseError):
    """A value is too large, or of a type that its column does not take."""


class OperationalError(DatabaseError):
    """The database cannot execute the statement now, or a table or column does not exist. `__cause__` has details."""


class IntegrityError(DatabaseError):
    """A constraint was violated."""


class InternalError(DatabaseError):
    """The database found itself in an invalid state."""


class ProgrammingError(DatabaseError):
    """Parameters or arguments do not match the statement."""


class NotSupportedError(DatabaseError):
    """The operation is not supported by replicated databases."""


_BY_CODE: dict[int, type[DatabaseError]] = {
    2: InternalError,  # SQLITE_INTERNAL
    11: DatabaseError,  # SQLITE_CORRUPT
    18: DataError,  # SQLITE_TOOBIG
    19: IntegrityError,  # SQLITE_CONSTRAINT
    20: IntegrityError,  # SQLITE_MISMATCH
    21: ProgrammingError,  # SQLITE_MISUSE
    25: ProgrammingError,  # SQLITE_RANGE
}
_BY_KIND: tuple[tuple[type[errors.BuckramError], type[Error]], ...] = (
    (errors.StatementRefused, NotSupportedError),
    (errors.HandleClosed, InterfaceError),
    (errors.ForkedClient, InterfaceError),
    (errors.InvalidArgument, ProgrammingError),
    (errors.ConfigError, InterfaceError),
    (errors.ResultTooLarge, DataError),
    (errors.TransactionTooLarge, DataError),
    (errors.DatabaseFailed, InternalError),
    (errors.InvariantViolation, InternalError),
)


def mapped(error: errors.BuckramError) -> Error:
    """The DB-API exception for an error; `raise mapped(error) from error`."""
    if isinstance(error, errors.SqlError):
        found = _BY_CODE.get(error.code, OperationalError)(error.message)
        found.sqlite_errorcode, found.sqlite_errorname = error.extended_code, error.name
        return found
    kind = next((mapped_to for known, mapped_to in _BY_KIND if isinstance(error, known)), OperationalError)
    return kind(str(error))


@contextmanager
def as_dbapi() -> Iterator[None]:
    """Raise errors of Buckram as those of DB-API."""
    try:
        yield
    except errors.BuckramError as error:
        raise mapped(error) from error
