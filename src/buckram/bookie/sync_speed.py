"""Remembers how long a bookie's newest commits took, beside whatever statistics are kept.

Not here: the commits (`bookie/storage/commit.py`), which report to the statistics that this stands before.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from buckram.core.cluster.bookie_report import SyncSpeed
from buckram.seams import Counter, Gauge, Histogram, Stats

COMMITS = "buckram_store_commit_seconds"
_KEPT = 256


class _Tee:
    """Passes observations on, and keeps the newest ones."""

    def __init__(self, inner: Histogram, kept: deque[float]) -> None:
        self._inner, self._kept = inner, kept

    def observe(self, value: float) -> None:
        self._kept.append(value)
        self._inner.observe(value)


class CommitTimes:
    """Statistics that also keep the durations of the newest `_KEPT` commits, in seconds."""

    def __init__(self, inner: Stats) -> None:
        self._inner = inner
        self._kept: deque[float] = deque(maxlen=_KEPT)

    def counter(self, name: str, help: str, **labels: str) -> Counter:
        return self._inner.counter(name, help, **labels)

    def gauge(self, name: str, help: str, **labels: str) -> Gauge:
        return self._inner.gauge(name, help, **labels)

    def histogram(self, name: str, help: str, **labels: str) -> Histogram:
        made = self._inner.histogram(name, help, **labels)
        return _Tee(made, self._kept) if name == COMMITS else made

    def speed(self) -> SyncSpeed:
        """How long the newest commits took; of none at all before the first."""
        return SyncSpeed(len(self._kept), median(self._kept), max(self._kept)) if self._kept else SyncSpeed()
