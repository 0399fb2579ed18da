"""Notes in an offset of a streaming query, beside positions: where its first batch begins, and how a stream that went
back is noticed. They are for every streaming source of this package.

Spark records only the end of a batch, and asks again where the query begins when it repeats the first one; by then
`latest` is a later position, and what was the earliest may be gone. Therefore the end of the first batch also contains
its start. Readers get `initialOffset` and `partitions` from here, so that none can forget it.

`"times": {"shop/orders": 1795...}` has the append time of the record before each position, `"history": [2, "5f..."]`
the history of the metadata then. Both are left out of comparisons: an offset that differs by them alone is no new
batch. Offsets of earlier releases have neither, and are accepted as they are.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from buckram.core.streams.records.positions import PositionMark, PositionVerdict
from buckram.errors import RecordsLost
from buckram.spark.shared.clients import without_traceback
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


Offset = dict[str, Any]
"""An offset as Spark stores it, in JSON."""
INITIAL, BEGAN = "initial", "began"
"""Keys of an offset that are neither streams nor databases, whose names have a slash."""


def as_initial(offset: Offset) -> Offset:
    """Return the offset with which a query begins, marked as such."""
    return {**offset, INITIAL: True}


def with_start(start: Offset, end: Offset) -> Offset:
    """Return the end for Spark to record: `start` if nothing is new; the first batch's end contains its start."""
    plain = {key: value for key, value in start.items() if key not in (INITIAL, BEGAN)}
    if without_notes(plain) == without_notes(end):
        return start
    return {**end, BEGAN: plain} if start.get(INITIAL) else end


def batch_start(start: Offset, end: Offset) -> Offset:
    """Return the start of a batch: the one in its end, if `start` is only where a query would begin now.

    A first batch without records ends where it began, and its end is marked as a start: more may be there now.
    """
    if not start.get(INITIAL):
        return start
    found: Offset = end if end.get(INITIAL) else end.get(BEGAN, start)
    return found


class KeptStartReader(DataSourceStreamReader):
    """A streaming reader whose first batch has the same records whenever it is repeated.

    `latestOffset` of a subclass returns what `with_start` makes of the end.
    """

    @abstractmethod
    def first_offset(self) -> Offset:
        """Return where a query without a checkpoint begins now."""

    @abstractmethod
    def between(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan a batch; fails if some of it is gone."""

    def initialOffset(self) -> Offset:
        with without_traceback():
            return as_initial(self.first_offset())

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with without_traceback():
            return self.between(batch_start(start, end), end)
