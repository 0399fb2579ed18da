"""The exceptions of DB-API 2.0. The error of Buckram that one stands for is its `__cause__`."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager

from buckram import errors


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
