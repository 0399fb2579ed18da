"""Metrics of a process, as its Prometheus registry has them, in the form that OpenTelemetry's exporter sends.

They have the names that the page of metrics has (docs/reference/metrics.md). Not here: when they are sent
(`runtime/telemetry/telemetry.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

_SCOPE = InstrumentationScope("buckram")
_UNITS = {"seconds": "s", "bytes": "By"}
_SINCE_START = AggregationTemporality.CUMULATIVE


def metrics_of(registry: CollectorRegistry, resource: Resource, began_ns: int, now_ns: int) -> MetricsData:
    """Return the present values of all metrics of a registry. Times in nanoseconds UTC; `began_ns` is the start of
    counting."""
    found = [one for family in registry.collect() for one in _of_family(family, began_ns, now_ns)]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(_SCOPE, found, "")], "")])


def _of_family(family: Family, began_ns: int, now_ns: int) -> Iterator[Metric]:
    if family.type == "histogram":
        points = [_histogram(dict(labels), samples, began_ns, now_ns) for labels, samples in _by_labels(family)]
        if points:
            yield _metric(family.name, family, Histogram(points, _SINCE_START))
        return
    counts = family.type == "counter"
    points_of_numbers = [
        NumberDataPoint(dict(one.labels), began_ns if counts else 0, now_ns, one.value) for one in family.samples
    ]
    if points_of_numbers:
        data = Sum(points_of_numbers, _SINCE_START, is_monotonic=True) if counts else Gauge(points_of_numbers)
        yield _metric(family.samples[0].name, family, data)


def _metric(name: str, family: Family, data: Any) -> Metric:
    word = name.removesuffix("_total").rpartition("_")[2]
    return Metric(name, family.documentation, _UNITS.get(word, "1"), data)


def _by_labels(family: Family) -> Iterable[tuple[tuple[tuple[str, str], ...], list[Sample]]]:
    """Return the samples of a family of histograms, one histogram after another."""
    found: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        found.setdefault(labels, []).append(sample)
    return found.items()


def _histogram(labels: Mapping[str, str], samples: Iterable[Sample], began_ns: int, now_ns: int) -> HistogramDataPoint:
    bounds, below, total, amount = list[float](), list[int](), 0, 0.0
    for sample in samples:
        if sample.name.endswith("_bucket"):
            bounds.append(float(sample.labels["le"]))
            below.append(round(sample.value))
        elif sample.name.endswith("_count"):
            total = round(sample.value)
        elif sample.name.endswith("_sum"):
            amount = sample.value
    counts = [upper - lower for upper, lower in zip(below, [0, *below], strict=False)]
    nothing: Any = None  # Least and most are optional on the wire, and are not known here.
    limits = [one for one in bounds if not math.isinf(one)]
    return HistogramDataPoint(dict(labels), began_ns, now_ns, total, amount, counts, limits, nothing, nothing)
