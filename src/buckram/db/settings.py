"""DatabaseLimits: what one statement, transaction or result may take of a database that others use too."""

from __future__ import annotations

from dataclasses import dataclass, fields

from buckram.errors import InvalidArgument

_MIB = 1024 * 1024
_BOUNDS: dict[str, tuple[float, float]] = {
    "transaction_s": (0.05, 3600.0),
    "wait_s": (0.0, 3600.0),
    "query_s": (0.05, 86_400.0),
    "transaction_bytes": (64 * 1024, 2**30),
    "result_bytes": (64 * 1024, 2**34),
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
    """So many bytes may the rows of one statement have."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, (least, most) = getattr(self, field.name), _BOUNDS[field.name]
            whole = field.name.endswith("_bytes")
            good = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not good or not least <= value <= most:
                kind = "a whole number" if whole else "a number of seconds"
                raise InvalidArgument(f"{field.name} = {value!r}: needs {kind} from {least:g} to {most:g}")


__all__ = ["DatabaseLimits"]
