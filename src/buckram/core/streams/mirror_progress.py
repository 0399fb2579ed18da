"""Progress of a mirror as its replication records it, and the reason if copying has stopped. Pure.

Not here: reading and writing it (`replication/lag.py`), the mark in the head (`core/streams/metadata/mirrors.py`).
"""

from __future__ import annotations

import json
from typing import NamedTuple

from buckram.core.streams.json_values import is_int64
from buckram.errors import MalformedRecord


class MirrorProgress(NamedTuple):
    """Progress of a mirror as the replication last recorded it."""

    source_end: int
    """The offset after the last record that was readable in the source."""
    copied: int
    """The offset up to which the mirror had the records."""
    time: int
    """Time of this record, microseconds UTC."""
    trouble: str = ""
    """Reason why copying has stopped; empty while it goes on."""
    since: int = 0
    """Time since which copying has stopped, microseconds UTC; 0 while it goes on."""


def parse_progress(key: str, value: bytes) -> MirrorProgress:
    """Parse the recorded progress of a mirror. Raises MalformedRecord, which names the key."""
    try:
        raw = json.loads(value)
        numbers = [raw["source_end"], raw["copied"], raw["time"], raw.get("since", 0)]
        if not all(map(is_int64, numbers)):
            raise TypeError("a number is none")
        return MirrorProgress(numbers[0], numbers[1], numbers[2], str(raw.get("trouble", "")), numbers[3])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecord(f"{key}: not how far a mirror is ({error!r}); delete it") from None


__all__ = ["MirrorProgress", "parse_progress"]
