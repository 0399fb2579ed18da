"""DatabaseLimits: what one statement, transaction or result may take of a database that others use too.

And whether this installation has the table engine.
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
    """Raises InvalidArgument for a value outside its bounds. They may differ between processes."""

    transaction_s: float = 5.0
    """So long may one transaction, or one statement that writes, have the database; then it is rolled back."""
    wait_s: float = 30.0
    """So long does a transaction wait for those before it; then it gets DatabaseBusy."""
    query_s: float = 60.0
    """So long may a statement that only reads run."""
    transaction_bytes: int = 64 * _MIB
    """So many bytes of pages may a transaction change."""
    result_bytes: int = 64 * _MIB
    """So many bytes may the rows of one statement, or of all statements of a batch, have."""
    waiting_calls: int = 10_000
    """So many calls may wait for their turn to write, and as many reads for theirs; others get DatabaseBusy at once."""
    waiting_bytes: int = 64 * _MIB
    """So many bytes may the statements and parameters of those that wait have."""
    open_transactions: int = 1000
    """So many transactions may be open or wait for their turn; the next one gets DatabaseBusy at once."""
    reading_transactions: int = 100
    """So many transactions that have not written yet may read a state of their own; each has three open files."""
    token_bytes: int = 256 * _MIB
    """So many bytes of memory may the tokens of a day have, about 200 each; calls under new ones get DatabaseBusy."""

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)


def check_engine() -> None:
    """Raise MissingEngine if SQLite or the compression of its images is not installed."""
    try:
        import_module("apsw")
        import_module("zstandard")
    except ImportError as error:
        raise MissingEngine(str(error)) from None


__all__ = ["DatabaseLimits", "check_engine"]
