"""Notes in an offset of a streaming query, beside positions, by which a stream that went back is noticed.

`"times": {"shop/orders": 1795...}` has the append time of the record before each position, `"history": [2, "5f..."]`
the history of the metadata then. Both are left out of comparisons: an offset that differs by them alone is no new
batch. Offsets of earlier releases have neither, and are accepted as they are. For every streaming source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buckram.core.streams.records.positions import PositionMark, PositionVerdict
from buckram.errors import RecordsLost
from buckram.types import History

TIMES, HISTORY = "times", "history"
VOUCHED = "vouched"
"""The key of the proof of who made an offset (`cluster_uri.py`), which is no part of a position either."""


def noted(times: Mapping[str, int], history: History) -> dict[str, Any]:
    """Return the keys of an offset that say when the records before its positions were appended."""
    return {TIMES: {name: times[name] for name in sorted(times)}, HISTORY: [history.epoch, history.restore]}


def mark_in(offset: Mapping[str, Any], name: str) -> PositionMark:
    """Return the mark of a stream in an offset; one without a time if an earlier release wrote the offset."""
    epoch, restore = offset.get(HISTORY, (-1, ""))
    return PositionMark(int(offset[name]), int(offset.get(TIMES, {}).get(name, 0)), "", int(epoch), str(restore))


def without_notes(offset: Mapping[str, Any]) -> dict[str, Any]:
    """Return an offset without its notes, for comparisons."""
    return {key: value for key, value in offset.items() if key not in (TIMES, HISTORY, VOUCHED)}


def lost(name: str, mark: PositionMark, earliest: int, verdict: PositionVerdict) -> RecordsLost | None:
    """Return the error for a stream whose metadata were restored since; None if it has what was read."""
    if verdict is PositionVerdict.SAME:
        return None
    why = {
        PositionVerdict.SHORTER: "the stream went back with its metadata, and ends below it",
        PositionVerdict.DIFFERS: (
            "the stream went back with its metadata, and has other records below it now than were read"
        ),
        PositionVerdict.UNKNOWN: (
            "the metadata were restored, and what was below it is truncated, so that it is unknown whether it was "
            "what was read"
        ),
    }[verdict]
    return RecordsLost(name, mark.offset, earliest, why)
