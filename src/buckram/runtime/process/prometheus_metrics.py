"""Counters, gauges and histograms that cost a few instructions each time, shown as prometheus-client's families.

The library's own take a lock for each value, which at thousands of writes a second is a tenth of what a bookie does.
Here a value is a plain number: between reading and writing it there is no call, so that no other thread comes between.
Not here: the registry and the names (`runtime/process/stats.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

Labels: TypeAlias = tuple[str, ...]
"""The values of a family's labels, in the order of its names."""


class CheapCounter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        self.value += amount


class CheapGauge:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value


class CheapHistogram:
    """Histogram; the last of `counts` counts the values above all `bounds`."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        place = bisect_left(self.bounds, value)
        self.counts[place] += 1
        self.total += value


M = TypeVar("M", CheapCounter, CheapGauge, CheapHistogram)


class _Family(Generic[M]):
    """One name, which a registry collects. `children`: its metrics, by the values of the labels."""

    def __init__(self, name: str, help: str, labels: Labels) -> None:
        self.name, self.help, self.labels = name, help, labels
        self.children: dict[Labels, M] = {}

    def child(self, values: Labels) -> M:
        """Return the metric for these label values, which is always the same object."""
        found = self.children.get(values)
        return self.children.setdefault(values, self._new()) if found is None else found

    def describe(self) -> Sequence[Metric]:
        """Return the family without values, from which the registry learns its names."""
        raise NotImplementedError

    def collect(self) -> Iterator[Metric]:
        """Yield the family with its present values."""
        raise NotImplementedError

    def _new(self) -> M:
        raise NotImplementedError


class CounterFamily(_Family[CheapCounter]):
    def describe(self) -> Sequence[Metric]:
        return [CounterMetricFamily(self.name, self.help)]

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        for values, counter in list(self.children.items()):
            family.add_metric(values, float(counter.value))
        yield family

    def _new(self) -> CheapCounter:
        return CheapCounter()


class GaugeFamily(_Family[CheapGauge]):
    def describe(self) -> Sequence[Metric]:
        return [GaugeMetricFamily(self.name, self.help)]

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self.name, self.help, labels=self.labels)
        for values, gauge in list(self.children.items()):
            family.add_metric(values, float(gauge.value))
        yield family

    def _new(self) -> CheapGauge:
        return CheapGauge()


class HistogramFamily(_Family[CheapHistogram]):
    def __init__(self, name: str, help: str, labels: Labels, bounds: Sequence[float]) -> None:
        super().__init__(name, help, labels)
        self._bounds = tuple(bounds)
        self._shown = [*map(floatToGoString, bounds), "+Inf"]

    def describe(self) -> Sequence[Metric]:
        return [HistogramMetricFamily(self.name, self.help)]

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for values, histogram in list(self.children.items()):
            total, below, buckets = histogram.total, 0.0, list[tuple[str, float]]()
            for bound, count in zip(self._shown, list(histogram.counts), strict=True):
                below += count
                buckets.append((bound, below))
            family.add_metric(values, buckets, total)
        yield family

    def _new(self) -> CheapHistogram:
        return CheapHistogram(self._bounds)
