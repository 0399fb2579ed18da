"""Statistics behind the Stats seam: none, in memory, or Prometheus. Served by `bookie/pages/status_pages.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from buckram.errors import InvalidArgument
from buckram.seams import Counter, Gauge, Histogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from buckram.runtime.process.prometheus_metrics import CounterFamily, GaugeFamily, HistogramFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS_BUCKETS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BYTES_BUCKETS = tuple(float(4**n) for n in range(3, 14))


class _Nothing:
    value = 0

    def inc(self, amount: int = 1) -> None:
        pass

    def set(self, value: float) -> None:
        pass

    def observe(self, value: float) -> None:
        pass


class NullStats:
    """Forgets everything."""

    _nothing = _Nothing()

    def counter(self, name: str, help: str, **labels: str) -> Counter:
        return self._nothing

    def gauge(self, name: str, help: str, **labels: str) -> Gauge:
        return self._nothing

    def histogram(self, name: str, help: str, **labels: str) -> Histogram:
        return self._nothing


class MemoryCounter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        self.value += amount


class MemoryGauge:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value


class MemoryHistogram:
    """Count, sum and maximum: enough for tests and reports."""

    __slots__ = ("count", "maximum", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.maximum = 0.0

    def observe(self, value: float) -> None:
        self.count += 1
        self.total += value
        if value > self.maximum:
            self.maximum = value


M = TypeVar("M", MemoryCounter, MemoryGauge, MemoryHistogram)
F = TypeVar("F", "CounterFamily", "GaugeFamily", "HistogramFamily")


class MemoryStats:
    """Values that can be read back: `values()` maps 'name{label="value"}' to numbers."""

    def __init__(self) -> None:
        self._metrics: dict[str, MemoryCounter | MemoryGauge | MemoryHistogram] = {}

    def counter(self, name: str, help: str, **labels: str) -> MemoryCounter:
        return self._get(MemoryCounter, name, labels)

    def gauge(self, name: str, help: str, **labels: str) -> MemoryGauge:
        return self._get(MemoryGauge, name, labels)

    def histogram(self, name: str, help: str, **labels: str) -> MemoryHistogram:
        return self._get(MemoryHistogram, name, labels)

    def _get(self, kind: type[M], name: str, labels: dict[str, str]) -> M:
        key = _key(name, labels)
        metric = self._metrics.get(key)
        if metric is None:
            metric = self._metrics[key] = kind()
        if not isinstance(metric, kind):
            raise InvalidArgument(f"{key} is a {type(metric).__name__} already, not a {kind.__name__}")
        return metric

    def values(self) -> dict[str, float]:
        """Return the values by name. A histogram has three: name_count, name_sum and name_max, with its labels."""
        values: dict[str, float] = {}
        for key, metric in self._metrics.items():
            if isinstance(metric, MemoryHistogram):
                name, brace, rest = key.partition("{")
                for suffix, value in (("count", metric.count), ("sum", metric.total), ("max", metric.maximum)):
                    values[f"{name}_{suffix}{brace}{rest}"] = value
            else:
                values[key] = metric.value
        return values


def _key(name: str, labels: dict[str, str]) -> str:
    if not labels:
        return name
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in sorted(labels.items())) + "}"


class PrometheusStats:
    """Prometheus metrics in a registry of their own. One name always has the same labels."""

    def __init__(self) -> None:
        # Imported here: a client that does not serve metrics should not pay for the import.
        import prometheus_client

        from buckram.runtime.process import prometheus_metrics

        self._render, self._kinds = prometheus_client.generate_latest, prometheus_metrics
        self.registry: CollectorRegistry = prometheus_client.CollectorRegistry()
        self._families: dict[str, CounterFamily | GaugeFamily | HistogramFamily] = {}

    def counter(self, name: str, help: str, **labels: str) -> Counter:
        kind = self._kinds.CounterFamily
        return self._family(kind, name, help, labels).child(_values(labels))

    def gauge(self, name: str, help: str, **labels: str) -> Gauge:
        kind = self._kinds.GaugeFamily
        return self._family(kind, name, help, labels).child(_values(labels))

    def histogram(self, name: str, help: str, **labels: str) -> Histogram:
        kind = self._kinds.HistogramFamily
        buckets = SECONDS_BUCKETS if name.endswith("_seconds") else BYTES_BUCKETS
        return self._family(kind, name, help, labels, buckets).child(_values(labels))

    def _family(self, kind: type[F], name: str, help: str, labels: dict[str, str], *more: Any) -> F:
        names = tuple(sorted(labels))
        family = self._families.get(name)
        if family is None:
            made = kind(name, help, names, *more)
            self.registry.register(made)
            self._families[name] = made
            return made
        if family.labels != names or not isinstance(family, kind):
            raise InvalidArgument(
                f"metric {name} exists already as {type(family).__name__} with labels {family.labels}"
            )
        return family

    def render(self) -> bytes:
        """Return the text that a Prometheus server reads; its type is CONTENT_TYPE."""
        return self._render(self.registry)


def _values(labels: dict[str, str]) -> tuple[str, ...]:
    """Return the label values in the order of their names."""
    return tuple(labels[name] for name in sorted(labels))
