"""Quotas, the limits of a namespace: names, units and their stored form.

Pure. Not here: keeping them (`metadata/records/tenants.py`), usage (`core/tenants/usage.py`), holding requests back
(`bookie/service/rate_limiter.py`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from buckram.errors import InvalidArgument

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
