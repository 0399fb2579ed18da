"""How far queries are behind: measured by the source, asked for by programs, and shown to Prometheus."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.spark.reading import numbered, readable, write
from tests.spark.test_streaming_parts import EARLIEST, Run

from buckram import sync
from buckram.errors import InvalidArgument
from buckram.spark import lag
from buckram.spark.source.query_lag import LagGauges, reported
from buckram.testing import ThreadedCluster

NONE = {"records": 0, "bytes": 0, "seconds": 0.0}


def reports(run: Run) -> dict[str, Any]:
    """Plan and read one batch, and return the lag that the source reports then."""
    run.batch()
    return reported([json.dumps(run.reader.reportLatestOffset())])


def a_query(*sources: dict[str, Any]) -> Any:
    """A query as far as `lag` looks at it: the progress, with what its sources said last."""
    texts = [SimpleNamespace(**{name: one and json.dumps(one) for name, one in source.items()}) for source in sources]
    return SimpleNamespace(lastProgress=SimpleNamespace(sources=texts) if sources else None)


def test_the_lag_is_what_the_planned_batch_leaves(cluster: ThreadedCluster, stream: str) -> None:
    other = f"{stream}-other"
    write(cluster.uri, stream, [b"x" * 1000] * 40, [b"x" * 1000] * 40)
    write(cluster.uri, other, numbered(3))
    run = Run(cluster.uri, subscribe=f"{stream},{other}", maxOffsetsPerTrigger=50, **EARLIEST)
    first = reports(run)
    position = run.start[stream]
    assert 0 < position < 50
    assert first[stream]["records"] == 80 - position
    assert 1000 * first[stream]["records"] <= first[stream]["bytes"] < 1200 * first[stream]["records"]
    run.batch()
    assert reports(run) == {stream: NONE, other: NONE}


def test_seconds_count_from_the_append_of_the_first_record_that_is_left(cluster: ThreadedCluster, stream: str) -> None:
    """Sealed segments, an open one, and a segment in whose middle the query stands."""
    with sync.connect(cluster.uri) as client, client.namespace().writer(stream) as writer:
        for _ in range(2):
            writer.append_many(numbered(10))
            writer.append_many(numbered(10))
            writer.roll()
        writer.append_many(numbered(20))
        readable(cluster.uri, stream, 60)
        times = [record.append_time for record in client.namespace().read(stream)]
        seen = {}
        for at in (0, 10, 15, 20, 35, 40, 59):
            uid = client.namespace().info(stream).uid
            query = a_query({"endOffset": {stream: at, "uids": {stream: uid}}, "latestOffset": None})
            before = client._thread.run(lambda: _now(client))
            (seen[at],) = lag(query, cluster.uri).values()
            after = client._thread.run(lambda: _now(client))
            assert seen[at]["records"] == 60 - at
            least, most = ((now - times[at]) / 1e6 for now in (before, after))
            assert least - 0.2 <= seen[at]["seconds"] <= most + 0.2
        assert seen[0]["bytes"] > seen[20]["bytes"] > seen[40]["bytes"] > seen[59]["bytes"] > 0
    end = a_query({"endOffset": {stream: 60, "uids": {stream: uid}}, "latestOffset": None})
    assert lag(end, cluster.uri) == {stream: NONE}


async def _now(client: sync.Client) -> int:
    return client._client.services.clocks.now()


def test_a_program_is_told_what_the_last_progress_says() -> None:
    late = {"records": 7, "bytes": 70, "seconds": 1.5}
    one = {"endOffset": {"a/b": 3, "uids": {"a/b": "1"}}, "latestOffset": {"a/b": 10, "a/c": 2, "lag": {"a/b": late}}}
    foreign = {"endOffset": {"a/z": 3}, "latestOffset": {"a/z": 5}}
    assert lag(a_query(one, foreign)) == {"a/b": late, "a/c": NONE}
    assert lag(a_query()) == {}
    assert lag(a_query({"endOffset": None, "latestOffset": None})) == {}
    unknown = {"endOffset": one["endOffset"], "latestOffset": {"a/b": 10}}  # It took too long to measure.
    assert lag(a_query(unknown)) == {}
    with pytest.raises(InvalidArgument, match="give the URI of the cluster"):
        lag(a_query({"endOffset": one["endOffset"], "latestOffset": None}))
    assert reported(["[1]", "no JSON", None]) == {}


def test_gauges_go_with_the_run_that_set_them() -> None:
    registry, gauges = CollectorRegistry(), LagGauges()
    registry.register(gauges)
    gauges.show("run 1", "totals", {"a/b": {"records": 7, "bytes": 70, "seconds": 1.5}})
    gauges.show("run 2", "copy", {f"a/{n}": {"records": n, "bytes": 1, "seconds": 0.5} for n in range(1500)})

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"buckram_spark_lag_{name}", labels)

    assert [value(name, query="totals", stream="a/b") for name in ("records", "bytes", "seconds")] == [7, 70, 1.5]
    assert value("records", query="copy", stream="a/1499") == 1499
    assert value("records", query="copy", stream="a/499") is None  # Only those that are furthest behind are shown.
    gauges.forget("run 1")
    gauges.forget("run 1")
    assert value("records", query="totals", stream="a/b") is None
    assert value("records", query="copy", stream="a/1499") == 1499
