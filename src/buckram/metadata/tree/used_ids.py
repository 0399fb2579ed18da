"""Ids that were chosen by hand, kept for ever, so that none of them is given to a ledger again.

An id names one ledger, also after that was deleted: what bookies and readers remember of it is of that one. Ids that
the store gave are those below its counter; the chosen ones are written down here, as intervals, with the creation of
their ledger. Each key has the ids of a bucket, so that its value stays bounded. Pure: the trees read and write it.
"""

from __future__ import annotations

import re

from buckram.errors import MalformedRecord
from buckram.types import LedgerId

BUCKET = 1 << 14
"""Number of ids of one key: at worst, every other one of them is an interval of its own, in 60 KB."""
_INTERVALS = re.compile(rb"(?:\d{1,5}(?:-\d{1,5})?(?: \d{1,5}(?:-\d{1,5})?)*)?")

Intervals = list[tuple[int, int]]
"""Ascending, disjoint, not touching; relative to the first id of the bucket."""


def used_key(own: str, ledger_id: LedgerId) -> str:
    """Return the key below Buckram's own ones that records whether this id was chosen."""
    return f"{own}/used-ids/{ledger_id // BUCKET:015d}"


def parse_used(key: str, value: bytes) -> Intervals:
    if not _INTERVALS.fullmatch(value):
        raise MalformedRecord(f"{key}: {value[:40]!r} is no list of ids; restore it from a backup")
    found: Intervals = []
    for part in value.split():
        first, _, last = part.partition(b"-")
        found.append((int(first), int(last or first)))
    return found


def is_used(intervals: Intervals, ledger_id: LedgerId) -> bool:
    place = ledger_id % BUCKET
    return any(first <= place <= last for first, last in intervals)


def with_used(intervals: Intervals, ledger_id: LedgerId) -> bytes:
    """Return the value with one more id."""
    place = ledger_id % BUCKET
    merged: Intervals = []
    for first, last in sorted([*intervals, (place, place)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return b" ".join(b"%d" % first if first == last else b"%d-%d" % (first, last) for first, last in merged)
