"""Helpers of the sink's fault tests: they write known rows and count the rows in the stream."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from buckram import connect, sync
from buckram.core.streams.names import stream_name
from buckram.core.streams.records.batch import Record
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.shared.ledgers import list_intents

FIRST_TIME = 1_700_000_000


class Lines:
    """Text files with distinct lines, each file a micro-batch of three partitions; and a query's checkpoint."""

    def __init__(self, directory: Path, *, files: int, rows: int) -> None:
        self.directory, self.rows = directory, rows
        self.checkpoint = directory / "checkpoint"
        self.files = 0
        (directory / "lines").mkdir(parents=True, exist_ok=True)
        self.add(files)

    def add(self, files: int) -> None:
        for _ in range(files):
            number = self.files
            path = self.directory / "lines" / f"{number:04d}.txt"
            written = path.with_name("." + path.name)
            written.write_text("".join(f"{number}.{row}\n" for row in range(self.rows)))
            # Spark reads files in the order of their times.
            os.utime(written, (FIRST_TIME + number, FIRST_TIME + number))
            written.rename(path)
            self.files += 1

    @property
    def expected(self) -> Counter[bytes | None]:
        return Counter(b"%d.%d" % (number, row) for number in range(self.files) for row in range(self.rows))

    def frame(self, spark: SparkSession) -> DataFrame:
        source = spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.directory / "lines"))
        return source.repartition(3)

    def start(
        self, spark: SparkSession, uri: str, stream: str, *, source: str = "buckram", frame: DataFrame | None = None,
        mode: str = "append", **options: Any,
    ) -> StreamingQuery:  # fmt: skip
        """Start a query that writes all lines there are and ends."""
        frame = self.frame(spark) if frame is None else frame
        if options.get("byStream"):
            frame = frame.selectExpr(
                "value", f"if(hash(value) % 3 = 0, NULL, concat('{stream}-', hash(value) % 3)) stream"
            )
        query = frame.writeStream.format(source).outputMode(mode)
        # By default so few rows would all go through the driver, and no task would make a ledger.
        query = query.options(**{"metadata": uri, "createStream": "true", "smallPartBytes": "1", **options})
        query = query.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        return query.start(stream)

    def run(self, spark: SparkSession, uri: str, stream: str, **options: Any) -> None:
        """Start a query and wait for its end; raises the error that ended it."""
        self.start(spark, uri, stream, **options).awaitTermination()


def records(uri: str, stream: str) -> list[Record]:
    """Return all readable values of the stream."""
    name = stream_name(stream)
    with sync.connect(uri) as client:
        ns = client.namespace(name.namespace)
        return list(ns.read(name.stream)) if ns.exists(name.stream) else []


def values(uri: str, stream: str) -> list[bytes | None]:
    return [record.value for record in records(uri, stream)]


def named_by(stream: str) -> list[str]:
    """Return the streams that the rows of `Lines.start` with the option byStream go to."""
    return [stream, *(f"{stream}-{rest}" for rest in (-2, -1, 1, 2))]


def segments(uri: str, stream: str) -> int:
    """Return the ledgers of the stream's segments."""
    name = stream_name(stream)
    with sync.connect(uri) as client:
        return len(list(client.namespace(name.namespace).segments(name.stream)))


def leftovers(uri: str, stream: str) -> tuple[int, int]:
    """Count ledgers of unpublished steps before and after a pass of a janitor that takes no application for dead, and
    joins nothing: what it replaced by that would be kept for a while."""
    name = stream_name(stream)

    async def look() -> tuple[int, int]:
        async with connect(uri) as client:
            ns = client.namespace(name.namespace)
            uid = (await ns.info(name.stream)).uid
            before = len(await list_intents(ns.store, uid))
            await Janitor(client, JanitorSettings(grace_s=0, orphans=False, join_at=0)).clean()
            return before, len(await list_intents(ns.store, uid))

    return asyncio.run(look())


__all__ = ["Lines", "leftovers", "named_by", "records", "segments", "values"]
