"""The Spark job: reads the streams through Buckram's source, checks every record, and counts what is interesting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from buckram.spark import find_java, local_session
from examples.debian.load import WARM_UP

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PARTITION_BYTES = 8 * 1024 * 1024
TOP = 10


@dataclass(frozen=True)
class Check:
    """What came back, compared with what was acknowledged, record by record."""

    records: int
    lost: int
    changed: int
    duplicated: int
    partitions: int
    seconds: float

    @property
    def good(self) -> bool:
        return self.lost == self.changed == self.duplicated == 0


@dataclass(frozen=True)
class Report:
    check: Check
    sections: list[tuple[str, int]]
    maintainers: list[tuple[str, int]]
    years: list[tuple[int, int]]


def run(
    uri: str, packages: Sequence[str], changelogs: Sequence[str], expected: Path, say: Callable[[str], None]
) -> Report:
    """`packages` and `changelogs` are streams; `expected` is a Parquet file of stream, offset, sha256."""
    session = local_session("debian-records")
    try:
        say(f"Spark {session.version} runs on Java {find_java().version}")
        everything = _records(session, uri, [*packages, *changelogs])
        check = _check(session, _records(session, uri, [WARM_UP]), everything, expected)
        rate = round(check.records / check.seconds) if check.seconds else 0
        say(f"Spark read {check.records:,} records in {check.partitions} partitions: [bold]{rate:,} records/s[/bold]")
        sections, maintainers = _packages(_records(session, uri, packages)) if packages else ([], [])
        years = _years(_records(session, uri, changelogs)) if changelogs else []
        return Report(check, sections, maintainers, years)
    finally:
        session.stop()


def _records(session: SparkSession, uri: str, streams: Sequence[str]) -> DataFrame:
    reader = session.read.format("buckram").option("metadata", uri).option("streams", ",".join(streams))
    return reader.option("maxPartitionBytes", str(PARTITION_BYTES)).load()


def _check(session: SparkSession, warm: DataFrame, found: DataFrame, expected: Path) -> Check:
    from pyspark.sql import functions as f

    partitions = found.rdd.getNumPartitions()
    # The first query pays for loading classes and starting Python workers: one record, not in the figure.
    warm.count()
    began = time.monotonic()
    hashed = found.select("stream", "offset", f.sha2("value", 256).alias("digest"))
    copies = (
        hashed.groupBy("stream", "offset")
        .agg(f.count("*").alias("copies"), f.min("digest").alias("low"), f.max("digest").alias("high"))
        .persist()
    )
    row = copies.agg(f.sum("copies").alias("records")).first()
    seconds = time.monotonic() - began

    both = session.read.parquet(str(expected)).join(copies, ["stream", "offset"], "full_outer")
    same = (f.col("low") == f.col("sha256")) & (f.col("high") == f.col("sha256"))

    def count_if(condition: Column) -> Column:
        return f.coalesce(f.sum(f.when(condition, 1).otherwise(0)), f.lit(0))

    known, read = f.col("sha256").isNotNull(), f.col("copies").isNotNull()
    result = both.agg(
        count_if(known & ~read).alias("lost"),
        count_if(known & read & ~same).alias("changed"),
        f.coalesce(f.sum(f.when(known, f.col("copies") - 1).otherwise(f.col("copies"))), f.lit(0)).alias("duplicated"),
    ).first()
    assert row is not None
    assert result is not None
    copies.unpersist()
    return Check(
        row["records"] or 0, int(result["lost"]), int(result["changed"]), int(result["duplicated"]), partitions, seconds
    )


def _field(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.regexp_extract(f.col("value").cast("string"), rf"(?m)^{name}: (.+)$", 1)


def _packages(found: DataFrame) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    from pyspark.sql import functions as f

    fields = found.select(
        f.element_at(f.split(_field("Section"), "/"), -1).alias("section"),
        f.trim(f.split_part(_field("Maintainer"), f.lit("<"), f.lit(1))).alias("maintainer"),
    ).persist()
    answer = _most(fields, "section"), _most(fields, "maintainer")
    fields.unpersist()
    return answer


def _most(frame: DataFrame, column: str) -> list[tuple[str, int]]:
    from pyspark.sql import functions as f

    rows = frame.groupBy(column).count().orderBy(f.desc("count"), column).limit(TOP).collect()
    return [(row[column] or "(none)", row["count"]) for row in rows]


def _years(found: DataFrame) -> list[tuple[int, int]]:
    from pyspark.sql import functions as f

    year = f.substring(_field("Date"), 1, 4).try_cast("int").alias("year")
    rows = found.select(year).where("year is not null").groupBy("year").count().orderBy("year").collect()
    return [(row["year"], row["count"]) for row in rows]
