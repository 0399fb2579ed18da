"""Samples of the space of all bookies: their form as records of the usage history, and sums of racks over time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from buckram.errors import MalformedRecord
from buckram.types import BookieId

NAMESPACE, STREAM = "system", "usage"
"""The stream that has the history."""
VERSION = 1


class Space(NamedTuple):
    """A bookie's disk. `rack` is a path such as /rack or /region/rack."""

    rack: str
    total_bytes: int
    free_bytes: int

    @property
    def used_bytes(self) -> int:
        return max(0, self.total_bytes - self.free_bytes)


class Sample(NamedTuple):
    """All bookies that answered at one moment; `wall_s` is seconds since 1970."""

    wall_s: float
    bookies: Mapping[BookieId, Space]

    def encode(self) -> bytes:
        rows = {bookie: list(space) for bookie, space in self.bookies.items()}
        return json.dumps({"v": VERSION, "t": round(self.wall_s, 3), "bookies": rows}, separators=(",", ":")).encode()


def decode_sample(where: str, record: bytes) -> Sample:
    """MalformedRecord, which names `where`, for anything else. What a later release added is left out."""
    try:
        found = json.loads(record)
        rows = {
            str(bookie): Space(str(row[0]), int(row[1]), int(row[2])) for bookie, row in dict(found["bookies"]).items()
        }
        if any(one.total_bytes < 0 or one.free_bytes < 0 for one in rows.values()):
            raise ValueError("negative bytes")
        return Sample(float(found["t"]), rows)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise MalformedRecord(f"{where}: no sample of the usage history ({error!r})") from None


class Point(NamedTuple):
    """Bytes that a rack had in use."""

    wall_s: float
    used_bytes: int


def by_rack(samples: Sequence[Sample]) -> dict[str, list[Point]]:
    """Return the used bytes over time of each rack of the newest sample, oldest first.

    Counted are the bookies of the newest sample, in their present racks. A bookie missing from a sample keeps its
    earlier value, 0 before its first sample.
    """
    if not samples:
        return {}
    ordered = sorted(samples, key=lambda one: one.wall_s)
    newest = ordered[-1].bookies
    found: dict[str, list[Point]] = {space.rack: [] for space in newest.values()}
    used = dict.fromkeys(newest, 0)
    for sample in ordered:
        for bookie in used.keys() & sample.bookies.keys():
            used[bookie] = sample.bookies[bookie].used_bytes
        sums = dict.fromkeys(found, 0)
        for bookie, size in used.items():
            sums[newest[bookie].rack] += size
        for rack, size in sums.items():
            found[rack].append(Point(sample.wall_s, size))
    return found
