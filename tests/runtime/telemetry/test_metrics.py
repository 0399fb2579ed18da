"""What a registry has, in OpenTelemetry's form: sums, gauges and histograms with the same values and labels."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.resources import Resource

from buckram.runtime.process.stats import PrometheusStats
from buckram.runtime.telemetry.metrics import metrics_of


def test_values_labels_and_buckets_are_kept() -> None:
    stats = PrometheusStats()
    stats.counter("buckram_things_total", "things", kind="a").inc(3)
    stats.counter("buckram_things_total", "things", kind="b").inc(4)
    stats.gauge("buckram_free_bytes", "free").set(17.5)
    took = stats.histogram("buckram_took_seconds", "took", stage="x")
    for seconds in (0.0001, 0.002, 0.002, 1000.0):
        took.observe(seconds)
    stats.histogram("buckram_took_seconds", "took", stage="y").observe(0.5)
    encoded: Any = encode_metrics(metrics_of(stats.registry, Resource.create({"service.name": "s"}), 10, 20))
    (resource,) = encoded.resource_metrics
    found = {one.name: one for scope in resource.scope_metrics for one in scope.metrics}
    assert sorted(found) == ["buckram_free_bytes", "buckram_things_total", "buckram_took_seconds"]
    things = found["buckram_things_total"].sum
    assert sorted((one.attributes[0].value.string_value, one.as_double) for one in things.data_points) == [
        ("a", 3),
        ("b", 4),
    ]
    assert (things.is_monotonic, things.aggregation_temporality) == (True, 2)
    assert {(one.start_time_unix_nano, one.time_unix_nano) for one in things.data_points} == {(10, 20)}
    assert found["buckram_free_bytes"].gauge.data_points[0].as_double == 17.5
    assert found["buckram_free_bytes"].unit == "By"
    x, y = found["buckram_took_seconds"].histogram.data_points
    assert (x.count, x.sum, sum(x.bucket_counts)) == (4, pytest.approx(1000.0041), 4)
    assert x.bucket_counts[0] == 1
    assert x.bucket_counts[-1] == 1
    assert len(x.bucket_counts) == len(x.explicit_bounds) + 1
    assert (y.count, y.attributes[0].value.string_value) == (1, "y")
    assert not x.HasField("min")
