"""Quotas, the limits of a namespace, and the usage that is compared with them: names, units and their stored form.
Pure.

Usage is what one bookie counted, and what all bookies counted together. Not here: keeping both
(`metadata/records/tenants.py`), counting (`bookie/accounting/namespace_usage.py`), holding requests back
(`bookie/service/rate_limiter.py`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from buckram.errors import InvalidArgument


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


MOST = 2**62
_LEAST_RATE = 1024
"""Lowest quota of bytes a second; a lower one would hold single entries back for minutes."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """Quotas of one namespace; None: no limit. Rates count an entry once, however many copies of it there are."""

    stored_bytes: int | None = None
    """Bytes on the disks of all bookies, each copy counted, as the logs of bookies hold them."""
    in_bytes_per_s: int | None = None
    """Bytes of entries, as framed on the wire, that all bookies take in a second."""
    in_entries_per_s: int | None = None
    out_bytes_per_s: int | None = None
    """Bytes of entries that all bookies send to readers in a second."""
    ledgers: int | None = None
    streams: int | None = None
    """Databases and the index of objects are streams, too."""
    databases: int | None = None
    connections: int | None = None
    """Connections to one bookie that send requests about the namespace's ledgers."""

    def __bool__(self) -> bool:
        return any(value is not None for value in self.values().values())

    def values(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in NAMES}

    def limits(self) -> dict[str, int]:
        """Return the quotas that are set, by name."""
        return {name: value for name, value in self.values().items() if value is not None}

    def changed(self, changes: Mapping[str, int | None]) -> Quotas:
        """Return quotas with these changes; None removes a limit. Raises InvalidArgument."""
        for name, value in changes.items():
            _check(name, value)
        return dataclasses.replace(self, **changes)

    def encode(self) -> bytes:
        return json.dumps({"version": 1, **self.limits()}).encode()

    @classmethod
    def parse(cls, value: bytes) -> Quotas:
        """Parse quotas; names of a later release are left out. Raises ValueError for what `encode` did not make."""
        found = json.loads(value)
        if not isinstance(found, dict) or found.get("version") != 1:
            raise ValueError("no quotas of a version that this release knows (1)")
        known = {name: found[name] for name in NAMES if found.get(name) is not None}
        if any(type(one) is not int or not 0 <= one <= MOST for one in known.values()):
            raise ValueError(f"a quota is a whole number from 0 to {MOST}")
        return cls(**known)


NAMES = tuple(one.name for one in dataclasses.fields(Quotas))
NONE = Quotas()
_RATES = ("in_bytes_per_s", "in_entries_per_s", "out_bytes_per_s")


def _check(name: str, value: Any) -> None:
    if name not in NAMES:
        raise InvalidArgument(f"quota {name!r} is unknown; known: {', '.join(NAMES)}")
    if value is None:
        return
    least = _LEAST_RATE if name.endswith("bytes_per_s") else 1 if name in _RATES else 0
    if type(value) is not int or not least <= value <= MOST:
        raise InvalidArgument(f"quota {name} = {value!r}: needs a whole number from {least} to {MOST}")
