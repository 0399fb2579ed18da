"""DatabaseLimits: bounds of time and memory for statements, transactions and results of a shared database.

`check_engine` finds out whether the table engine is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from buckram.bounds import check_bounds
from buckram.errors import MissingEngine

_MIB = 1024 * 1024
_BOUNDS: dict[str, tuple[float, float]] = {
    "transaction_s": (0.05, 3600.0),
    "wait_s": (0.0, 3600.0),
    "query_s": (0.05, 86_400.0),
    "transaction_bytes": (64 * 1024, 2**30),
    "result_bytes": (64 * 1024, 2**34),
    "waiting_calls": (1, 1_000_000),
    "waiting_bytes": (64 * 1024, 2**34),
    "open_transactions": (1, 100_000),
    "reading_transactions": (1, 10_000),
    "token_bytes": (64 * 1024, 2**36),
}


@dataclass(frozen=True, slots=True)
class DatabaseLimits:
    """Limits of one process's use of a database; processes may differ. Raises InvalidArgument for one out of bounds."""

    transaction_s: float = 5.0
    """Maximum time that a transaction, or a statement that writes, may hold the database; then it is rolled back."""
    wait_s: float = 30.0
    """Maximum time that a transaction waits for those before it; then it gets DatabaseBusy."""
    query_s: float = 60.0
    """Maximum run time of a statement that only reads."""
    transaction_bytes: int = 64 * _MIB
    """Maximum bytes of pages that a transaction may change."""
    result_bytes: int = 64 * _MIB
    """Maximum bytes of the rows that one statement, or all statements of a batch, may return."""
    waiting_calls: int = 10_000
    """Maximum number of calls that wait to write, and of reads that wait; further ones get DatabaseBusy at once."""
    waiting_bytes: int = 64 * _MIB
    """Maximum bytes of the statements and parameters of waiting calls."""
    open_transactions: int = 1000
    """Maximum number of transactions that are open or wait for their turn; the next one gets DatabaseBusy at once."""
    reading_transactions: int = 100
    """Maximum number of transactions that read a state of their own before a first write; each has three open files."""
    token_bytes: int = 256 * _MIB
    """Maximum memory of the tokens of one day, about 200 bytes each; beyond it new tokens get DatabaseBusy."""

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)


def check_engine() -> None:
    """Raise MissingEngine if SQLite or the compression of its images is not installed."""
    try:
        import_module("apsw")
        import_module("zstandard")
    except ImportError as error:
        raise MissingEngine(str(error)) from None
