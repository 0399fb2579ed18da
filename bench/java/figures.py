"""Table of the figures, with required values and aims, and their verdicts from measurements. Pure.

A measurement has a key CASE:CLIENT>BOOKIES; a figure compares one value of two measurements of the same round, or looks
at a value of ours alone. Several rounds: the median of the ratios counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Runs = Mapping[str, Mapping[str, Any]]
"""Measurements of one round: values by measurement."""

LOUD = 0.10
"""Share of the machine that strangers may take before a figure is marked."""


@dataclass(frozen=True)
class Figure:
    """One row. `theirs` None: the value of ours itself must hold; Apache's is then shown where `shown` names it."""

    name: str
    title: str
    unit: str
    ours: str
    theirs: str | None
    value: str
    must: float | None
    """Required value; None: the figure is only shown, beside the row before it."""
    aim: float | None
    less: bool
    """True if less is better."""
    shown: str | None = None


@dataclass(frozen=True)
class Outcome:
    """Verdict on a figure. `ratio` is the median of ours divided by theirs, or of ours itself; `low` and `high` are its
    range over the rounds."""

    figure: Figure
    rounds: int
    ours: float
    theirs: float | None
    ratio: float
    low: float
    high: float
    loud: float
    """The largest share of strangers in what counted."""

    @property
    def must_met(self) -> bool:
        return self._within(self.figure.must)

    @property
    def aim_met(self) -> bool:
        return self._within(self.figure.aim)

    def _within(self, limit: float | None) -> bool:
        if limit is None:
            return True
        return self.ratio <= limit if self.figure.less else self.ratio >= limit


def outcome(figure: Figure, rounds: Sequence[Runs]) -> Outcome | None:
    """Over the rounds that measured all it needs; None when none did."""
    ours, theirs, ratios, loud = list[float](), list[float](), list[float](), 0.0
    for runs in rounds:
        needed = [figure.ours, *([figure.theirs] if figure.theirs else [])]
        if any(key not in runs or figure.value not in runs[key] for key in needed):
            continue
        mine = float(runs[figure.ours][figure.value])
        ours.append(mine)
        if figure.theirs is not None:
            other = float(runs[figure.theirs][figure.value])
            theirs.append(other)
            ratios.append(mine / other if other else float("inf"))
        else:
            ratios.append(mine)
            if figure.shown is not None and figure.value in runs.get(figure.shown, {}):
                theirs.append(float(runs[figure.shown][figure.value]))
        loud = max([loud, *(float(runs[key].get("foreign_share", 0.0)) for key in needed)])
    if not ours:
        return None
    other_side = statistics.median(theirs) if theirs else None
    middle = statistics.median(ratios)
    return Outcome(figure, len(ours), statistics.median(ours), other_side, middle, min(ratios), max(ratios), loud)


def _pair(case: str) -> tuple[str, str]:
    return f"{case}:ours>ours", f"{case}:apache-2>apache"


def _ratio(
    name: str, title: str, unit: str, case: str, value: str, must: float, aim: float, *, less: bool = False
) -> Figure:
    ours, theirs = _pair(case)
    return Figure(name, title, unit, ours, theirs, value, must, aim, less)


def _own(name: str, title: str, unit: str, case: str, value: str, must: float, aim: float) -> Figure:
    ours, theirs = _pair(case)
    return Figure(name, title, unit, ours, None, value, must, aim, True, shown=theirs)


FIGURES: tuple[Figure, ...] = (
    _ratio("one", "adds/s, one ledger, batches of 1,000, 1 KB", "/s", "one", "per_s", 4, 5),
    Figure("one_runs", "adds/s, one ledger, 20 a call", "/s", "one-20:ours>ours", "one:apache-2>apache", "per_s",
           None, None, False),
    Figure("one_single", "adds/s, one ledger, one by one", "/s", "one-1:ours>ours", "one:apache-2>apache", "per_s",
           None, None, False),
    _ratio("small", "adds/s, one ledger, 100 B", "/s", "small", "per_s", 2, 3),
    _ratio("hundred", "adds/s, 100 ledgers, 20 a call, 1 KB", "/s", "hundred", "per_s", 3.5, 4),
    Figure("hundred_single", "adds/s, 100 ledgers, one by one", "/s", "hundred-1:ours>ours", "hundred:apache-2>apache",
           "per_s", 2.5, 3, False),
    Figure("four_single", "the same from four processes of 25 ledgers", "/s", "hundred-1x4:ours>ours",
           "hundred-1x4:apache-2>apache", "per_s", None, None, False),
    Figure("core_each", "the same from one process, if each process had a core (the busiest one's CPU)", "/s",
           "hundred-1:ours>ours", None, "a_core_each_per_s", None, None, False, shown="hundred:apache-2>apache"),
    Figure("busiest", "CPU of the busiest thread an add, 100 ledgers, one by one", "us", "hundred-1:ours>ours", None,
           "busiest_thread_us", None, None, True, shown="hundred:apache-2>apache"),
    _ratio("paced_p50", "p50 at 5,000 adds/s", "ms", "paced", "p50_ms", 0.75, 0.5, less=True),
    _ratio("paced_p99", "p99 at 5,000 adds/s", "ms", "paced", "p99_ms", 0.5, 0.25, less=True),
    _ratio("tail", "p99.9 at 5,000 adds/s over five minutes", "ms", "tail", "p999_ms", 1, 0.5, less=True),
    _ratio("cpu_one", "CPU per add in all, one ledger", "us", "one", "cpu_us", 0.5, 0.3, less=True),
    _ratio("cpu_hundred", "CPU per add in all, 100 ledgers", "us", "hundred", "cpu_us", 0.65, 0.4, less=True),
    _ratio("sequential", "sequential read, digests checked", "/s", "sequential", "per_s", 1.5, 2.5),
    Figure("remote", "the same, our client as if on another machine: TCP, no files of bookies", "/s",
           "remote:ours>ours", "sequential:apache-2>apache", "per_s", None, None, False),
    _ratio("cold", "random reads of a cold 20 GB set", "/s", "cold", "per_s", 1, 1.5),
    _own("disk", "bytes on disk per acked byte and replica, 10 GB", "", "fill", "disk_per_byte", 1.1, 1.05),
    _own("memory_idle", "resident memory of a bookie, idle", "MB", "idle", "rss_mb", 80, 60),
    _own("memory_loaded", "resident memory of a bookie, loaded", "MB", "fill", "rss_mb", 300, 200),
    _own("memory_million", "resident memory of a bookie with 1,000,000 ledgers", "MB", "million", "rss_mb", 300, 200),
    _own("start_empty", "start to first answer, empty", "s", "start", "seconds", 0.8, 0.4),
    _own("start_full", "start to first answer, 20 GB after kill -9", "s", "restart", "seconds", 3, 1),
    Figure("cross_ours", "our client on Apache's bookies, against Apache's client", "/s",
           "one:ours>apache", "one:apache-2>apache", "per_s", 1, 1.5, False),
    Figure("cross_v2", "Apache's client (v2) on our bookies, against Apache's bookies", "/s",
           "one:apache-2>ours", "one:apache-2>apache", "per_s", 1.7, 2, False),
    Figure("cross_v3", "Apache's client (v3) on our bookies, against Apache's bookies", "/s",
           "one:apache-3>ours", "one:apache-3>apache", "per_s", 0.8, 1.2, False),
    Figure("hundred_v2", "the same (v2) with 100 ledgers", "/s", "hundred:apache-2>ours", "hundred:apache-2>apache",
           "per_s", 1.8, 2, False),
    Figure("hundred_v3", "the same (v3) with 100 ledgers", "/s", "hundred:apache-3>ours", "hundred:apache-3>apache",
           "per_s", 1.5, 2, False),
    Figure("bookies_v2", "CPU an add of three bookies, Apache's client (v2), 100 ledgers", "us",
           "hundred:apache-2>ours", None, "servers_us", 9, 6, True, shown="hundred:apache-2>apache"),
    Figure("bookies_v3", "CPU an add of three bookies, Apache's client (v3), 100 ledgers", "us",
           "hundred:apache-3>ours", None, "servers_us", 12, 7.5, True, shown="hundred:apache-3>apache"),
)  # fmt: skip
