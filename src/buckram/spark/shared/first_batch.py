"""Where the first batch of a streaming query begins, kept in its end: for every streaming source of this package.

Spark records only the end of a batch, and asks again where the query begins when it repeats the first one; by then
`latest` is a later position, and what was the earliest may be gone. Therefore the end of the first batch also contains
its start. Readers get `initialOffset` and `partitions` from here, so that none can forget it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from buckram.spark.shared.clients import without_traceback
from buckram.spark.shared.rollback_detection import without_notes

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

    A first batch without records ends where it began, and its end is marked as a start: more may be there now. An end
    that is marked so and ahead of `start` was not made here, and no record below it is passed over.
    """
    if not start.get(INITIAL):
        return start
    if end.get(INITIAL) and not any("/" in name and start.get(name, at) < at for name, at in end.items()):
        return end
    found: Offset = end.get(BEGAN, start)
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
