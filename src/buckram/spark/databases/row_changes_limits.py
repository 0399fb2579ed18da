"""The streaming reader of changes with a limit for each trigger, for PySpark 4.2 and newer.

Not here: the reader for older releases, and reading (`row_changes.py`).
"""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from buckram.errors import ChangesGone, RecordsLost
from buckram.spark.databases.row_changes import UID, ChangesStream, bounds, check_reaches, check_same, offset_at
from buckram.spark.shared.clients import connection, without_traceback
from buckram.spark.shared.first_batch import Offset, with_start


class LimitedChanges(ChangesStream, SupportsTriggerAvailableNow):
    """Implements maxOffsetsPerTrigger, availableNow in several batches, and the end of the log in the progress."""

    _target: int | None = None
    _end = 0

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # type: ignore[override]  # see ChangesStream
        with without_traceback():
            name = self.options.database
            uid, least, end = connection(self.options.metadata).run(lambda client: bounds(client, self.options))
            first, self._end = start[name], end
            if uid != start[UID]:
                raise RecordsLost(name, first, None, "the database was deleted and made anew")
            if first < least and first < end:
                raise ChangesGone(name, first, least)
            if first > end:
                check_reaches(self.options, first, end)
            else:
                check_same(self.options, start)
            if self._target is not None:
                end = min(end, self._target)
            if isinstance(limit, ReadMaxRows):
                end = min(end, first + limit.max_rows)
            return with_start(start, offset_at(self.options, uid, max(first, end), start))

    def reportLatestOffset(self) -> Offset | None:
        return {self.options.database: self._end}

    def prepareForTriggerAvailableNow(self) -> None:
        with without_traceback():
            self._target = connection(self.options.metadata).run(lambda client: bounds(client, self.options))[2]
