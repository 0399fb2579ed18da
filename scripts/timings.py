"""Durations of tests in earlier runs on this machine (`.test-times/`), and limits of folders (tests/budget.toml)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.machine_speed import Sample, mean_factor

TIMES = Path(".test-times")
BUDGET = Path("tests/budget.toml")
ROOM = 1.5
"""Limit of CPU as a multiple of what a folder usually takes, if that cost as much as it does here and now."""


@dataclass(frozen=True, slots=True)
class Timing:
    test: str
    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Budget:
    """Budget of a folder of tests: CPU seconds that it takes at factor 1 (scripts/machine_speed.py), seconds that it
    takes alone on two quiet cores, in how many parts it runs, and gigabytes of memory that each part needs."""

    usual: float
    seconds: float
    parts: int = 1
    memory: float = 0.7


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds of a part of a folder's tests, and when it ran, in seconds of the monotonic clock."""

    folder: str
    cpu: float
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Cost of a folder in a run, and how dear work was on the machine meanwhile."""

    folder: str
    cpu: float
    factor: float
    budget: Budget | None

    @property
    def even(self) -> float:
        """CPU seconds that it would have taken at factor 1."""
        return self.cpu / self.factor

    @property
    def limit(self) -> float:
        """CPU seconds that it might take in this run."""
        usual = 0.0 if self.budget is None else self.budget.usual
        return self.factor * usual * ROOM

    @property
    def over(self) -> str:
        """Return a sentence if it took more than it may, or has no budget; otherwise ""."""
        if self.budget is None:
            return (
                f"tests/{self.folder} has no row in {BUDGET}: it took {self.cpu:.0f} s of CPU at factor"
                f" {self.factor:.2f}, so add `{self.folder} = {{ usual = {self.even:.0f}, seconds = ... }}`"
            )
        if self.cpu <= self.limit:
            return ""
        return (
            f"tests/{self.folder} took {self.cpu:.0f} s of CPU. Usual is {self.budget.usual:g} s, work was"
            f" {self.factor:.2f} times as dear as on the quiet reference machine, so the limit was {self.limit:.0f} s."
            " Make its tests cheaper, leave a share of them to make soak, or write usual ="
            f" {self.even:.0f} in {BUDGET} and say why in the commit"
        )

    def __str__(self) -> str:
        usual = "-" if self.budget is None else f"{self.budget.usual:g}"
        share = "-" if self.budget is None else f"{self.even / self.budget.usual:.2f}"
        return f"{self.folder:<12} {self.cpu:8.1f} {self.factor:7.2f} {self.even:8.1f} {usual:>8} {share:>7}"


HEADING = f"{'folder':<12} {'CPU s':>8} {'factor':>7} {'at 1':>8} {'usual':>8} {'share':>7}"
"""Names of the columns of a printed Verdict; `share` is the CPU at factor 1 in usual ones, and may be up to ROOM."""


@dataclass(slots=True)
class Outcome:
    """Result of a test file: how many of its tests ran, and why one was skipped."""

    ran: int = 0
    skipped: str = ""


UNKNOWN = Budget(30, 60)
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


def verdicts_of(spent: Iterable[Spent], budgets: Mapping[str, Budget], samples: Sequence[Sample]) -> list[Verdict]:
    """Judge the folders, in the order of their names. A part is judged by the time in which it ran."""
    cpu, even = dict[str, float](), dict[str, float]()
    for part in spent:
        factor = mean_factor(samples, part.began, part.ended)
        cpu[part.folder] = cpu.get(part.folder, 0.0) + part.cpu
        even[part.folder] = even.get(part.folder, 0.0) + part.cpu / factor
    return [
        Verdict(folder, taken, taken / even[folder] if even[folder] else 1.0, budgets.get(folder))
        for folder, taken in sorted(cpu.items())
    ]
