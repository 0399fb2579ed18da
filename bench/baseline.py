"""Figures of an earlier commit on a machine of the same kind, and which of today's are worse. Pure but for the file.

A baseline has for each case and figure the median of a few measurements and its noise, the largest distance of one of
them from the median as a share of it. Worse is: by more than the noise of both, and by more than MARGIN in any case.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "baselines"
MARGIN = 0.05
LOUD = 0.10
"""A figure that was measured beside strangers is compared with nothing."""
MORE_IS_BETTER = re.compile(r"(_per_s|^per_s)(_|$)")
_LESS = r"(_ms|_us|_mb|^seconds|_s|_us_per_[a-z]+|_per_byte|_to_first)"
LESS_IS_BETTER = re.compile(_LESS + r"(_at_[\d.]+|_last|_after|_alone)?$")
FOREIGN = "foreign_cpu"

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """One figure of a baseline."""

    value: float
    noise: float


@dataclass(frozen=True)
class Worse:
    """A figure that got worse by more than its noise. `by` is a share of the baseline's value."""

    case: str
    figure: str
    was: float
    now: float
    by: float
    noise: float

    def __str__(self) -> str:
        return (
            f"{self.case} {self.figure}: {self.now:,.6g}, was {self.was:,.6g}: "
            f"{self.by:.0%} worse, its noise is {self.noise:.0%}"
        )


def better(figure: str) -> int:
    """1 where more is better, -1 where less is, 0 where a figure is no measure of quality."""
    if MORE_IS_BETTER.search(figure):
        return 1
    return -1 if LESS_IS_BETTER.search(figure) else 0


def summary(measured: Sequence[Figures]) -> dict[str, Known]:
    """Return the median and the noise of each figure over several measurements of one case."""
    found = {}
    for figure in measured[0]:
        values = [m[figure] for m in measured if isinstance(m.get(figure), (int, float))]
        if len(values) < len(measured) or not better(figure):
            continue
        middle = statistics.median(values)
        noise = max(abs(value - middle) for value in values) / abs(middle) if middle else 0.0
        found[figure] = Known(float(middle), round(noise, 3))
    return found


def worse(case: str, now: Sequence[Figures], known: Mapping[str, Known]) -> list[Worse]:
    """Figures of a case that are worse than in the baseline; none where strangers were loud all the time."""
    quiet = [figures for figures in now if figures.get(FOREIGN, 0.0) <= LOUD]
    if not quiet:
        return []
    found = []
    for figure, today in summary(quiet).items():
        was = known.get(figure)
        if was is None or not was.value:
            continue
        by = (was.value - today.value) / abs(was.value) * better(figure)
        noise = max(MARGIN, was.noise + today.noise)
        if by > noise:
            found.append(Worse(case, figure, was.value, today.value, by, noise))
    return found


def machine_kind(cpuinfo: str | None = None, cores: int | None = None) -> str:
    """Names machines whose figures can be compared: processors, their model and the system."""
    if cpuinfo is None:
        path = Path("/proc/cpuinfo")
        cpuinfo = path.read_text() if path.exists() else ""
    named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    model = named.group(1) if named else platform.machine()
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return f"{platform.system().lower()}-{cores or os.cpu_count() or 1}x-{slug}"


def load(kind: str, folder: Path = FOLDER) -> dict[str, dict[str, Known]]:
    """Return the baseline for a kind of machine by case; empty where there is none."""
    path = folder / f"{kind}.json"
    if not path.exists():
        return {}
    cases: dict[str, dict[str, Any]] = json.loads(path.read_text())["cases"]
    return {case: {name: Known(*value) for name, value in figures.items()} for case, figures in cases.items()}


def save(kind: str, commit: str, cases: Mapping[str, Mapping[str, Known]], folder: Path = FOLDER) -> Path:
    """Take these cases into the baseline; others in it stay."""
    folder.mkdir(exist_ok=True)
    merged = {**load(kind, folder), **cases}
    rows = {case: {n: [k.value, k.noise] for n, k in merged[case].items()} for case in sorted(merged)}
    path = folder / f"{kind}.json"
    path.write_text(json.dumps({"machine": kind, "commit": commit, "cases": rows}, indent=1) + "\n")
    return path
