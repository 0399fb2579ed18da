"""Periodic checks: when the next one is due, and the sample of entries that a check reads instead of all. Pure.

The due time follows from the date of the last run, which is kept in the metadata store. Another auditor with another
clock may have written it, so a date in the future is not believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from buckram.core.placement.search import Chooser
from buckram.types import EntryId


def due_in_s(last_run_ms: int, now_ms: int, interval_s: float) -> float:
    """Return the seconds until the next run; 0 if no last run is known, or if it lies in the future."""
    if last_run_ms < 0 or last_run_ms > now_ms:
        return 0.0
    return max(0.0, interval_s - (now_ms - last_run_ms) / 1000)


def sample(ranges: Sequence[tuple[EntryId, EntryId]], fraction: float, rng: Chooser) -> list[EntryId]:
    """Draw this fraction of the entries in ascending ranges (first, last), rounded up; all for 1 and more.

    At least one entry is drawn, unless there is none.
    """
    count = sum(last - first + 1 for first, last in ranges)
    wanted = count if fraction >= 1 else min(count, max(1, ceil(count * fraction)))
    found: list[EntryId] = []
    before, rows = 0, iter(ranges)
    first, last = next(rows, (0, -1))
    for number in range(wanted):
        low, high = number * count // wanted, (number + 1) * count // wanted
        index = low + min(high - low - 1, int(rng.random() * (high - low)))
        while index - before > last - first:
            before += last - first + 1
            first, last = next(rows)
        found.append(first + index - before)
    return found
