"""Durations of tests in earlier runs on this machine (`.test-times/`), and limits of folders (tests/budget.toml)."""

from __future__ import annotations

import json
import statistics
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TIMES = Path(".test-times")
BUDGET = Path("tests/budget.toml")
ROOM = 4.5
"""Limit of CPU as a multiple of what a folder takes on the quickest machine."""
TELLING = 8
"""Minimum number of folders in a run from which the slowness of the machine is estimated."""


@dataclass(frozen=True, slots=True)
class Timing:
    test: str
    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Budget:
    """Budget of a folder of tests: CPU seconds that it may take, seconds that it takes alone on two quiet cores, in how
    many parts it runs, and gigabytes of memory that each part needs."""

    cpu: float
    seconds: float
    parts: int = 1
    memory: float = 0.7

    @property
    def usual_cpu(self) -> float:
        """CPU seconds that it takes on a quick machine."""
        return self.cpu / ROOM


@dataclass(slots=True)
class Outcome:
    """Result of a test file: how many of its tests ran, and why one was skipped."""

    ran: int = 0
    skipped: str = ""


UNKNOWN = Budget(120, 60)
"""A folder that has no row yet."""


def read_times(path: Path) -> list[Timing]:
    """Return the rows of a file that the plugin wrote; none where there is no file. A line cut short is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(Timing(*json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Return the outcomes that the plugin recorded, by test file."""
    found: dict[str, Outcome] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        name, skipped = json.loads(line)
        outcome = found.setdefault(name, Outcome())
        if skipped:
            outcome.skipped = skipped
        else:
            outcome.ran += 1
    return found


def file_seconds(folder: Path = TIMES) -> dict[str, float]:
    """Seconds of each test file that was run here before."""
    tests = {row.test: row.seconds for path in sorted(folder.glob("*.jsonl")) for row in read_times(path)}
    found: dict[str, float] = {}
    for test, seconds in tests.items():
        name = test.partition("::")[0]
        found[name] = found.get(name, 0.0) + seconds
    return found


def slowest(times: Iterable[Timing], count: int = 10) -> list[Timing]:
    return sorted(times, key=lambda row: row.seconds, reverse=True)[:count]


def read_budgets(path: Path = BUDGET) -> dict[str, Budget]:
    """Return the budgets by folder below tests/."""
    table = tomllib.loads(path.read_text())["folders"]
    return {name: Budget(**row) for name, row in table.items()}


def over_budget(spent: Mapping[str, float], budgets: Mapping[str, Budget]) -> list[str]:
    """Return a sentence for each folder that took more CPU than its budget, or that has none. The budgets are scaled by
    the slowness of the machine in this run."""
    slowness = _slowness(spent, budgets)
    said = []
    for folder, cpu in spent.items():
        budget = budgets.get(folder)
        if budget is None:
            said.append(f"tests/{folder} took {cpu:.0f} s of CPU and has no row in {BUDGET}: add one")
        elif cpu > budget.cpu * slowness:
            said.append(
                f"tests/{folder} took {cpu:.0f} s of CPU, more than the {budget.cpu * slowness:.0f} s of {BUDGET}"
                f"{f' on a machine that is {slowness:.1f} times as slow' if slowness > 1 else ''}: make its tests"
                " cheaper, leave a share of them to make soak, or raise the budget and say why in the commit"
            )
    return said


def _slowness(spent: Mapping[str, float], budgets: Mapping[str, Budget]) -> float:
    """Return the median factor by which folders took longer in this run than on a quick machine; at least 1, and 1 for
    a run of fewer than TELLING folders."""
    ratios = [cpu / budgets[folder].usual_cpu for folder, cpu in spent.items() if folder in budgets]
    return max(1.0, statistics.median(ratios)) if len(ratios) >= TELLING else 1.0
