"""Room for calls that wait: a bound of their number and of their bytes.

Not here: whose turn it is (`state/db/commits/write_queue.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from buckram.core.db.sql import Parameters, SqlValue, Statement
from buckram.errors import DatabaseBusy
from buckram.errors.state import limit_named
from buckram.state.db.settings import DatabaseLimits

_LONG = (str, bytes)
_CALL_BYTES = 500
"""Overhead of a call in bytes, besides its statements."""


def size_of(statements: Iterable[Statement]) -> int:
    """Return the approximate bytes that statements with their parameters take."""
    size = _CALL_BYTES
    for sql, parameters in statements:
        size += len(sql)
        for value in parameters if type(parameters) is tuple else _values(parameters):
            size += len(value) if isinstance(value, _LONG) else 8
    return size


def _values(parameters: Parameters) -> Iterable[SqlValue]:
    return parameters.values() if isinstance(parameters, Mapping) else parameters


class CallLimits:
    """Bounds of one queue of one database: number and bytes of its calls. `what` names the queue in errors."""

    def __init__(self, database: str, limits: DatabaseLimits, what: str) -> None:
        self._database, self._limits, self._what = database, limits, what
        self._calls = self._bytes = 0

    def take(self, statements: Iterable[Statement]) -> int:
        """Take room for a call; return its size, for `give` when it waits no more. Raises DatabaseBusy if full."""
        limits, size = self._limits, size_of(statements)
        if self._calls >= limits.waiting_calls:
            raise self._full(f"{limits.waiting_calls} {self._what} wait already", "waiting_calls")
        # A single one may have as much as it likes: its parameters are in memory anyway.
        if self._calls and self._bytes + size > limits.waiting_bytes:
            raise self._full(f"{self._what} with {self._bytes} bytes wait already", "waiting_bytes")
        self._calls += 1
        self._bytes += size
        return size

    def give(self, size: int) -> None:
        """Give the room of a call back."""
        self._calls -= 1
        self._bytes -= size

    def _full(self, why: str, limit: str) -> DatabaseBusy:
        return DatabaseBusy(self._database, f"{why}; try again ({limit_named(limit)})")
