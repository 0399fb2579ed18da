"""The source of a streaming query where PySpark lets it limit its batches: 4.2 and newer."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from buckram.spark.clients import connection, plainly
from buckram.spark.stream_live import LiveReader, Offset

__all__ = ["LimitedReader"]


class LimitedReader(LiveReader, SupportsTriggerAvailableNow):
    """maxOffsetsPerTrigger and maxBytesPerTrigger, availableNow in several batches, and the lag in the progress."""

    def getDefaultReadLimit(self) -> ReadLimit:
        # There is no limit of both kinds: whichever is told, both options hold.
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # type: ignore[override]  # see LiveReader
        limited = not isinstance(limit, ReadAllAvailable)
        with plainly():
            self.begin(start)
            return connection(self.options.metadata).run(lambda _: self.live().latest(start, limited=limited))

    def reportLatestOffset(self) -> Offset | None:
        with plainly():
            return connection(self.options.metadata).run(lambda _: self.live().newest())

    def prepareForTriggerAvailableNow(self) -> None:
        with plainly():
            connection(self.options.metadata).run(lambda _: self.live().aim())


assert issubclass(LimitedReader, DataSourceStreamReader)
