"""The stream reader with a rate limit per trigger, for PySpark 4.2 and newer, which let a source limit its batches.

Not here: how a limit becomes offsets (`Live.latest` in `micro_batches.py`), and the reader for older releases
(`LiveReader` there).
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from buckram.spark.shared.clients import connection, without_traceback
from buckram.spark.shared.first_batch import Offset
from buckram.spark.source.micro_batches import LiveReader


class LimitedReader(LiveReader, SupportsTriggerAvailableNow):
    """Implements maxOffsetsPerTrigger, maxBytesPerTrigger, availableNow in several batches, and the lag in progress."""

    def getDefaultReadLimit(self) -> ReadLimit:
        # PySpark has no limit of both rows and bytes. Only one is returned, but `Live.latest` observes both options.
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # type: ignore[override]  # see LiveReader
        limited = not isinstance(limit, ReadAllAvailable)
        with without_traceback():
            self.begin(start)
            return connection(self.options.metadata).run(lambda _: self.live().latest(start, limited=limited))

    def reportLatestOffset(self) -> Offset | None:
        with without_traceback():
            return connection(self.options.metadata).run(lambda _: self.live().last_ends())

    def prepareForTriggerAvailableNow(self) -> None:
        with without_traceback():
            connection(self.options.metadata).run(lambda _: self.live().set_target())


assert issubclass(LimitedReader, DataSourceStreamReader)
