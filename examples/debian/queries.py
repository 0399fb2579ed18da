"""The streaming queries: changelog entries by week of their date, packages by second of their writing. Each window that
is complete becomes one record of another stream, exactly once, whatever dies meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from examples.debian.load import CHANGELOGS, NAMESPACE, PACKAGES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


TRIES = 4


@dataclass(frozen=True)
class Windows:
    """How one kind of records is counted. `late`: what comes so much later than the latest is left out."""

    kind: str
    sink: str
    length: str
    late: str


WINDOWS = (
    Windows(CHANGELOGS, f"{NAMESPACE}/weeks", "7 days", "7 days"),  # their stream is in order
    Windows(PACKAGES, f"{NAMESPACE}/seconds", "1 second", "2 minutes"),  # a write may take its time
)


def counted(records: DataFrame, windows: Windows) -> DataFrame:
    """Columns window, count."""
    from pyspark.sql import functions as f

    return records.groupBy(f.window("timestamp", windows.length).alias("window")).count()


def start(
    session: SparkSession, uri: str, streams: Mapping[str, Sequence[str]], checkpoints: str, trigger: dict[str, Any]
) -> list[StreamingQuery]:
    """All queries, on their checkpoints below `checkpoints`."""
    found: list[StreamingQuery] = []
    for windows in WINDOWS:
        if not streams.get(windows.kind):
            continue
        source = session.readStream.format("buckram").option("metadata", uri).option("startingOffsets", "earliest")
        records = source.load(",".join(streams[windows.kind])).withWatermark("timestamp", windows.late)
        rows = counted(records, windows).selectExpr(
            "string(window.start) as key", "string(count) as value", "window.start as timestamp"
        )
        sink = rows.writeStream.format("buckram").option("metadata", uri).option("createStream", "true")
        sink = sink.option("checkpointLocation", f"{checkpoints}/{windows.kind}").queryName(windows.kind)
        found.append(sink.trigger(**trigger).start(windows.sink))
    return found


def finish(
    session: SparkSession, uri: str, streams: Mapping[str, Sequence[str]], checkpoints: str,
    running: Sequence[StreamingQuery],
) -> None:  # fmt: skip
    """Until everything that was written is counted.

    A query that fails is started again on its checkpoint, as whoever runs one does: that is what exactly once is for.
    """
    from pyspark.errors import StreamingQueryException

    for query in running:
        query.stop()
    for left in reversed(range(TRIES)):
        last = start(session, uri, streams, checkpoints, {"availableNow": True})
        try:
            for query in last:
                query.awaitTermination()
            break
        except StreamingQueryException:
            for query in last:
                query.stop()
            if not left:
                raise
