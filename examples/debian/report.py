"""What Spark finds at the end: every record is compared with what was acknowledged, every window with the records that
belong into it, and what is interesting is counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from examples.debian.load import CHANGELOGS, CLOSING, PACKAGES, WARM_UP
from examples.debian.queries import WINDOWS, Windows, counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PARTITION_BYTES = 8 * 1024 * 1024
TOP = 10
NOT_CLOSING = f"key is null or string(key) != '{CLOSING.decode()}'"
Rows = list[tuple[str, int]]


@dataclass(frozen=True)
class Check:
    """What came back, compared with what was acknowledged, record by record."""

    records: int
    lost: int
    changed: int
    duplicated: int
    partitions: int
    seconds: float


@dataclass(frozen=True)
class Counts:
    """What the streaming queries counted, compared with what there is: records that are missing in their window or that
    are counted too often."""

    windows: int = 0
    records: int = 0
    missing: int = 0
    surplus: int = 0


@dataclass(frozen=True)
class Past:
    """What the streams give back once their sealed segments are files outside the cluster, compared with what was
    acknowledged, with the files themselves, and with what the queries counted before."""

    records: int = 0
    history: int = 0
    """Records that are in files; the others are on bookies."""
    lost: int = 0
    changed: int = 0
    surplus: int = 0
    """Records that came more than once, or that nobody was acknowledged."""
    unlike: int = 0
    """Records whose files, read as plain Parquet, have other bytes, or have them twice."""
    missing: int = 0
    """Records that are in no window's count."""
    recounted: int = 0
    """Records that windows count too often."""

    @property
    def live(self) -> int:
        return self.records - self.history

    @property
    def same(self) -> bool:
        wrong = (self.lost, self.changed, self.surplus, self.unlike, self.missing, self.recounted)
        return not any(wrong) and 0 < self.history <= self.records


@dataclass(frozen=True)
class Copies:
    """What reading every copy of every ledger at its bookie found."""

    ledgers: int = 0
    replicas: int = 0
    entries: int = 0
    bad: int = 0
    """Copies with entries that are missing or damaged, or that could not be read."""


@dataclass(frozen=True)
class Report:
    check: Check
    counts: Counts
    sections: Rows = field(default_factory=list)
    maintainers: Rows = field(default_factory=list)
    years: list[tuple[int, int]] = field(default_factory=list)
    seconds: list[tuple[float, int]] = field(default_factory=list)
    """Packages written in each second since 1970."""


def run(session: SparkSession, uri: str, streams: Mapping[str, Sequence[str]], expected: Path) -> Report:
    """`expected` is a Parquet file of stream, offset, sha256."""
    everything = _records(session, uri, [stream for kind in streams.values() for stream in kind])
    check = _check(session, _read(session, uri, [WARM_UP]), everything, expected)
    whole = _counts(session, uri, streams)
    sections: Rows = []
    maintainers: Rows = []
    seconds: list[tuple[float, int]] = []
    if streams.get(PACKAGES):
        sections, maintainers = _packages(_records(session, uri, streams[PACKAGES]))
        seconds = _totals(_read(session, uri, [WINDOWS[1].sink]), "double(timestamp)")
    years = _totals(_read(session, uri, [WINDOWS[0].sink]), "year(timestamp)") if streams.get(CHANGELOGS) else []
    return Report(check, whole, sections, maintainers, [(int(year), count) for year, count in years], seconds)


def history(
    session: SparkSession, uri: str, streams: Mapping[str, Sequence[str]], expected: Path, places: Mapping[str, str]
) -> Past:
    """Read the streams, through history and bookies, and the files at `places` beside them."""
    from functools import reduce

    from pyspark.sql import functions as f

    def digests(frame: DataFrame, name: str) -> DataFrame:
        found = frame.select("stream", "offset", f.sha2("value", 256).alias("sha"))
        grouped = found.groupBy("stream", "offset")
        return grouped.agg(f.count("*").alias(f"{name}_copies"), f.max("sha").alias(f"{name}_sha"))

    everything = _records(session, uri, [stream for kind in streams.values() for stream in kind])
    files = [session.read.parquet(place).withColumn("stream", f.lit(stream)) for stream, place in places.items()]
    plain = reduce(lambda left, right: left.unionByName(right), files).where(NOT_CLOSING)
    both = digests(everything, "read").join(digests(plain, "file"), ["stream", "offset"], "full_outer")
    whole = session.read.parquet(str(expected)).join(both, ["stream", "offset"], "full_outer")

    def count_if(condition: str) -> Column:
        return f.coalesce(f.sum(f.when(f.expr(condition), 1).otherwise(0)), f.lit(0))

    row = whole.agg(
        count_if("read_copies is not null").alias("records"),
        count_if("file_copies is not null").alias("history"),
        count_if("sha256 is not null and read_copies is null").alias("lost"),
        count_if("read_sha <> sha256").alias("changed"),
        count_if("read_copies > 1 or sha256 is null").alias("surplus"),
        count_if("file_copies > 1 or file_copies is not null and not (file_sha <=> read_sha)").alias("unlike"),
    ).first()
    assert row is not None
    counts = _counts(session, uri, streams)
    return Past(**{**row.asDict(), "missing": counts.missing, "recounted": counts.surplus})


def _counts(session: SparkSession, uri: str, streams: Mapping[str, Sequence[str]]) -> Counts:
    """All queries together."""
    counts = [
        _compare(_records(session, uri, streams[windows.kind]), _read(session, uri, [windows.sink]), windows)
        for windows in WINDOWS if streams.get(windows.kind)
    ]  # fmt: skip
    return Counts(*(sum(getattr(one, name) for one in counts) for name in Counts.__dataclass_fields__))


def copies(session: SparkSession, uri: str) -> Copies:
    """Read all copies, each from the bookie that must hold it; of open ledgers the parts that cannot grow any more."""
    from buckram.spark.jobs.scrub import scrub

    found = scrub(session, uri)
    return Copies(found.ledgers, found.replicas, found.entries, len(found.bad) + len(found.unknown))


def maintainers(session: SparkSession, uri: str, streams: Mapping[str, Sequence[str]]) -> list[tuple[str, int, int]]:
    """For each maintainer in each stream the packages and the changelog entries."""
    from pyspark.sql import functions as f

    found = _records(session, uri, [stream for kind in streams.values() for stream in kind])
    packages = f.when(f.col("stream").isin(list(streams.get(PACKAGES, ()))), 1).otherwise(0)
    rows = (
        found.select("stream", _maintainer().alias("maintainer"), packages.alias("package"))
        .groupBy("stream", "maintainer")
        .agg(f.sum("package").alias("packages"), f.sum(1 - f.col("package")).alias("entries"))
        .orderBy("stream", "maintainer")
    )
    return [(row["maintainer"], row["packages"], row["entries"]) for row in rows.collect()]


def _read(session: SparkSession, uri: str, streams: Sequence[str]) -> DataFrame:
    reader = session.read.format("buckram").option("metadata", uri).option("subscribe", ",".join(streams))
    return reader.option("maxPartitionBytes", str(PARTITION_BYTES)).load()


def _records(session: SparkSession, uri: str, streams: Sequence[str]) -> DataFrame:
    """Without the records that close streams."""
    return _read(session, uri, streams).where(NOT_CLOSING)


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


def _compare(records: DataFrame, sink: DataFrame, windows: Windows) -> Counts:
    """A window that is there twice counts twice."""
    from pyspark.sql import functions as f

    due = counted(records, windows).selectExpr("string(window.start) as key", "count as due")
    told = sink.selectExpr("string(key) as key", "bigint(string(value)) as count").groupBy("key")
    both = due.join(told.agg(f.sum("count").alias("told")), "key", "full_outer").na.fill(0)
    row = both.selectExpr(
        "count(*) as windows", "sum(told) as records", "sum(greatest(due - told, 0)) as missing",
        "sum(greatest(told - due, 0)) as surplus",
    ).first()  # fmt: skip
    assert row is not None
    return Counts(row["windows"], row["records"] or 0, row["missing"] or 0, row["surplus"] or 0)


def _totals(sink: DataFrame, by: str) -> list[tuple[float, int]]:
    """What the windows add up to."""
    sums = sink.selectExpr(f"{by} as at", "bigint(string(value)) as count").groupBy("at").sum("count")
    return [(row[0], row[1]) for row in sums.orderBy("at").collect()]


def _field(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.regexp_extract(f.col("value").cast("string"), rf"(?m)^{name}: (.+)$", 1)


def _maintainer() -> Column:
    """Without the address."""
    from pyspark.sql import functions as f

    return f.trim(f.split_part(_field("Maintainer"), f.lit("<"), f.lit(1)))


def _packages(found: DataFrame) -> tuple[Rows, Rows]:
    from pyspark.sql import functions as f

    fields = found.select(
        f.element_at(f.split(_field("Section"), "/"), -1).alias("section"),
        _maintainer().alias("maintainer"),
    ).persist()
    answer = _most(fields, "section"), _most(fields, "maintainer")
    fields.unpersist()
    return answer


def _most(frame: DataFrame, column: str) -> Rows:
    from pyspark.sql import functions as f

    rows = frame.groupBy(column).count().orderBy(f.desc("count"), column).limit(TOP).collect()
    return [(row[column] or "(none)", row["count"]) for row in rows]
