"""Usage of namespaces, as counted by one bookie, and by all bookies together. Pure.

Not here: counting (`bookie/accounting/namespace_usage.py`), keeping it (`metadata/records/tenants.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one namespace on one bookie or on several. Rates are of the last seconds, and count an entry once."""

    stored_bytes: int = 0
    in_bytes_per_s: float = 0.0
    in_entries_per_s: float = 0.0
    out_bytes_per_s: float = 0.0
    connections: int = 0
    wanted_in_bytes: float = 0.0
    """Bytes a second that came in or are held back; bookies divide the quota of a rate in proportion to these."""
    wanted_in_entries: float = 0.0
    wanted_out_bytes: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(mine + theirs for mine, theirs in zip(self.row(), other.row(), strict=True)))  # type: ignore[arg-type]

    def row(self) -> tuple[int | float, ...]:
        return (
            self.stored_bytes,
            self.in_bytes_per_s,
            self.in_entries_per_s,
            self.out_bytes_per_s,
            self.connections,
            self.wanted_in_bytes,
            self.wanted_in_entries,
            self.wanted_out_bytes,
        )


NOTHING = Usage()


@dataclass(frozen=True, slots=True)
class Counts:
    """Contents of a namespace, counted in its records. `applications`: bytes of closed ledgers by application."""

    ledgers: int = 0
    streams: int = 0
    databases: int = 0
    applications: Mapping[str, int] = field(default_factory=dict)


def encode_usage(found: Mapping[str, Usage], round_number: int) -> bytes:
    """Encode the usage that one bookie publishes; a new `round_number` shows that the bookie is still counting."""
    rows = {name: [round(value, 1) for value in one.row()] for name, one in found.items() if one != NOTHING}
    return json.dumps({"version": 1, "round": round_number, "namespaces": rows}, separators=(",", ":")).encode()


def parse_usage(value: bytes) -> tuple[dict[str, Usage], int]:
    """Parse the usage and its round number. Raises ValueError for anything that `encode_usage` did not make."""
    raw = _versioned(value)
    try:
        found = {str(name): _usage(row) for name, row in raw["namespaces"].items()}
        return found, int(raw["round"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no usage: {error!r}") from None


def _usage(row: Any) -> Usage:
    stored, in_bytes, in_entries, out_bytes, connections, *wanted = (float(one) for one in row)
    return Usage(int(stored), in_bytes, in_entries, out_bytes, int(connections), *wanted[:3])


def encode_counts(found: Mapping[str, Counts], round_number: int) -> bytes:
    rows = {
        name: {"ledgers": one.ledgers, "streams": one.streams, "databases": one.databases, "by": dict(one.applications)}
        for name, one in found.items()
    }
    return json.dumps({"version": 1, "round": round_number, "namespaces": rows}, separators=(",", ":")).encode()


def parse_counts(value: bytes) -> tuple[dict[str, Counts], int]:
    """Parse the counts and their round number. Raises ValueError for anything that `encode_counts` did not make."""
    raw = _versioned(value)
    try:
        found = {
            str(name): Counts(int(row["ledgers"]), int(row["streams"]), int(row["databases"]), dict(row["by"]))
            for name, row in raw["namespaces"].items()
        }
        return found, int(raw["round"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no counts: {error!r}") from None


def _versioned(value: bytes) -> dict[str, Any]:
    raw = json.loads(value)
    if not isinstance(raw, dict) or raw.get("version") != 1:
        raise ValueError("of a version that this release does not know")
    return raw


def summed(bookies: Iterable[Mapping[str, Usage]]) -> dict[str, Usage]:
    """Return the usage of each namespace, summed over all bookies."""
    total: dict[str, Usage] = {}
    for found in bookies:
        for name, one in found.items():
            total[name] = total.get(name, NOTHING) + one
    return total
