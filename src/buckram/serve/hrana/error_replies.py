"""Errors of the database as errors of the Hrana protocol: a message and a code."""

from __future__ import annotations

from typing import Any

from buckram.errors import (
    BuckramError,
    CommitUnknown,
    DatabaseFailed,
    InvalidArgument,
    NotLeader,
    ResultTooLarge,
    SqlError,
    StatementRefused,
    TooStale,
    TransactionExpired,
    TransactionTooLarge,
)
from buckram.serve.hrana.protocol.values import Malformed, NotRepresentable

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (TransactionExpired, "TRANSACTION_TIMEOUT"),
    (TransactionTooLarge, "TRANSACTION_TOO_LARGE"),
    (CommitUnknown, "COMMIT_UNKNOWN"),
    (StatementRefused, "BLOCKED"),
    (ResultTooLarge, "RESPONSE_TOO_LARGE"),
    (NotLeader, "NOT_LEADER"),
    (TooStale, "TOO_STALE"),
    (DatabaseFailed, "DATABASE_FAILED"),
    (InvalidArgument, "ARGS_INVALID"),
    (NotRepresentable, "VALUE_NOT_REPRESENTABLE"),
    (Malformed, "PROTOCOL_ERROR"),
)
EXPECTED = (BuckramError, NotRepresentable, Malformed)
"""Exceptions that a statement may raise; any other one is a bug of the server."""


class StreamRefusal(BuckramError):
    """A request that this stream cannot take, with its code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def error_of(error: BaseException) -> dict[str, Any]:
    """Return the error as JSON. `code` is libSQL's where its server has one: SQLITE_CONSTRAINT, BLOCKED, ..."""
    found: dict[str, Any] = {"message": str(error)}
    if isinstance(error, SqlError):
        found["message"] = error.message
        found["code"] = _primary(error.name)
        found["extended_code"] = error.name
    elif isinstance(error, StreamRefusal):
        found["code"] = error.code
    else:
        found["code"] = next((code for kind, code in _CODES if isinstance(error, kind)), "UNKNOWN")
    token = getattr(error, "token", None)
    if isinstance(token, str):
        found["token"] = token
    return found


def _primary(name: str) -> str:
    """SQLITE_CONSTRAINT of SQLITE_CONSTRAINT_UNIQUE; the first word after the prefix is the code."""
    return "_".join(name.split("_")[:2])
