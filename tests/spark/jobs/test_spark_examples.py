"""The Spark examples do what they describe, also after they were stopped and started again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from examples import spark_fold, spark_pipeline, spark_windows
from pyspark.sql import SparkSession

from buckram.testing import ThreadedCluster

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[3]
LONGEST = 105


@pytest.fixture
def own() -> Iterator[ThreadedCluster]:
    """A cluster for one test, because the examples' streams have fixed names."""
    with ThreadedCluster(bookies=3) as running:
        yield running


@pytest.mark.share(4, "pipelines")
def test_windows_with_late_records(spark: SparkSession, own: ThreadedCluster, tmp_path: Path) -> None:
    rng = Random(7)
    start = datetime(2020, 1, 6, tzinfo=UTC)
    steady = [(f"p{n}", start + timedelta(days=n, hours=rng.randrange(24))) for n in range(200)]
    # A record that is ten days late counts, one that is half a year late does not, by its place in the stream.
    changes = [
        *steady[:100], *[(f"a{n}", steady[95][1] - timedelta(days=10)) for n in range(7)],
        *steady[100:], *[(f"b{n}", steady[0][1]) for n in range(5)],
    ]  # fmt: skip
    spark_windows.store(own.uri, changes)
    weeks, late = spark_windows.count(spark, own.uri, tmp_path, delay="30 days", at_once=50)
    assert late == 5
    assert sum(weeks.values()) == len(changes) - 5
    expected: dict[datetime, int] = {}
    for name, date in changes:
        if not name.startswith("b"):
            # Spark's weeks begin on Thursdays, since 1970-01-01 was one.
            days = (date - datetime(1970, 1, 1, tzinfo=UTC)).days
            week = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days - days % 7)
            expected[week.replace(tzinfo=None)] = expected.get(week.replace(tzinfo=None), 0) + 1
    assert weeks == expected


@pytest.mark.share(4, "pipelines")
def test_upserts_folded_into_a_table(spark: SparkSession, own: ThreadedCluster, tmp_path: Path) -> None:
    rng = Random(3)
    kept: dict[str, str] = {}
    changes = 0
    for step in range(3):
        upserts: dict[str, str | None] = {f"p{n}": f"{rng.randrange(3)}" for n in rng.sample(range(60), 40)}
        if step:
            upserts[f"p{step}"] = None
        spark_fold.store(own.uri, upserts)
        spark_fold.fold(spark, own.uri, tmp_path)
        changes += sum(kept.get(name) != version for name, version in upserts.items())
        kept.update({name: version for name, version in upserts.items() if version is not None})
        for name in [name for name, version in upserts.items() if version is None]:
            kept.pop(name, None)
        found = {row["name"]: row["version"] for row in spark_fold.table(spark, own.uri).collect()}
        assert found == kept
    stored = spark.read.format("buckram").option("metadata", own.uri).load(spark_fold.CHANGES)
    assert stored.count() == changes  # An upsert that changes nothing is not stored.


def replay(checkpoint: Path) -> None:
    """Make it look as if the driver had died after the last batch was published and before Spark recorded that."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.share(4, "pipelines")
def test_a_chain_of_two_queries(spark: SparkSession, own: ThreadedCluster, tmp_path: Path) -> None:
    for begin in range(0, 600, 300):
        lines = [b"%s,%d" % ((b"ann", b"bob", b"eve")[n % 3], n) for n in range(begin, begin + 300)]
        spark_pipeline.store(own.uri, [*lines, b"no order"])
        spark_pipeline.run(spark, own.uri, tmp_path, at_once=150)
        replay(tmp_path / spark_pipeline.ORDERS)
        replay(tmp_path / spark_pipeline.PAID)
    spark_pipeline.run(spark, own.uri, tmp_path)
    expected = [(name, 200, 1.25 * sum(range(first, 600, 3))) for first, name in enumerate(("ann", "bob", "eve"))]
    assert spark_pipeline.total(spark, own.uri) == expected


def test_the_examples_stay_short() -> None:
    found = sorted((ROOT / "examples").glob("spark_*.py"))
    assert len(found) == 3
    for path in found:
        assert len(path.read_text().splitlines()) < LONGEST
