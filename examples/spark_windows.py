"""Event time: changelog entries of this machine, which come in no order, counted by week of their date. What is later
than the watermark allows is dropped, and that is counted, too. `python -m examples.spark_windows`
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from buckram import sync
from buckram.metadata.default import default_uri
from buckram.spark import local_session
from examples.debian.inputs import changelog_entries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = "changes"
Change = tuple[str, datetime]
"""A package, and when it was changed."""


def store(metadata: str, changes: Sequence[Change]) -> None:
    """One record a change, its date as event time."""
    with sync.connect(metadata) as client, client.namespace().writer(STREAM) as writer:
        times = [int(date.timestamp() * 1_000_000) for _, date in changes]
        writer.append_many([b"changed"] * len(changes), keys=[name.encode() for name, _ in changes], timestamps=times)


def count(
    session: SparkSession, metadata: str, folder: Path, *, delay: str, at_once: int
) -> tuple[dict[datetime, int], int]:
    """Entries by the week's first moment, and how many came too late; in micro-batches of `at_once` records."""
    from pyspark.sql import functions as f

    weeks: dict[datetime, int] = {}

    def keep(batch: DataFrame, number: int) -> None:
        """Weeks that have a new count; a batch that is repeated says the same again."""
        weeks.update({row["start"]: row["count"] for row in batch.select("week.start", "count").collect()})

    source = session.readStream.format("buckram").option("metadata", metadata).option("startingOffsets", "earliest")
    changes = source.option("maxOffsetsPerTrigger", at_once).load(STREAM).withWatermark("timestamp", delay)
    counted = changes.groupBy(f.window("timestamp", "7 days").alias("week")).count()
    query = (
        counted.writeStream.outputMode("update").foreachBatch(keep)
        .option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    # Spark's own count of dropped rows is one after partial aggregation, which makes one row of many.
    return weeks, sum(step.numInputRows for step in query.recentProgress) - sum(weeks.values())


def changes_of_this_machine() -> list[Change]:
    """Package by package, so their dates go to and fro."""
    found: list[Change] = []
    for entry in changelog_entries():
        fields = dict(line.split(": ", 1) for line in entry.decode(errors="replace").split("\n")[:5] if ": " in line)
        found.append((fields["Package"], datetime.fromisoformat(fields["Date"]).astimezone(UTC)))
    return found


def main() -> None:
    metadata = default_uri(os.environ, Path.cwd())
    changes = changes_of_this_machine()[:20_000]
    store(metadata, changes)
    with tempfile.TemporaryDirectory() as folder:
        weeks, late = count(local_session("windows"), metadata, Path(folder), delay="3650 days", at_once=5_000)
    print(f"{len(changes)} entries: {sum(weeks.values())} in {len(weeks)} weeks, {late} came too late")


if __name__ == "__main__":
    main()
