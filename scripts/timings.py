"""What tests took in earlier runs on this machine (`.test-times/`), and what folders may take (tests/budget.toml)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TIMES = Path(".test-times")
BUDGET = Path("tests/budget.toml")


@dataclass(frozen=True, slots=True)
class Timing:
    test: str
    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Budget:
    """Of a folder of tests: CPU seconds that it may take, seconds that it takes on two quiet cores."""

    cpu: float
    seconds: float


UNKNOWN = Budget(120, 60)
"""A folder that has no row yet."""


def read_times(path: Path) -> list[Timing]:
    """The rows of a file that the plugin wrote; none where there is no file. A line cut short is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(Timing(*json.loads(line)))
        except (ValueError, TypeError):
            continue
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
    """By folder below tests/."""
    table = tomllib.loads(path.read_text())["folders"]
    return {name: Budget(float(row["cpu"]), float(row["seconds"])) for name, row in table.items()}


def over_budget(spent: Mapping[str, float], budgets: Mapping[str, Budget]) -> list[str]:
    """A sentence for each folder that took more CPU than it may, or that has no budget."""
    said = []
    for folder, cpu in spent.items():
        budget = budgets.get(folder)
        if budget is None:
            said.append(f"tests/{folder} took {cpu:.0f} s of CPU and has no row in {BUDGET}: add one")
        elif cpu > budget.cpu:
            said.append(
                f"tests/{folder} took {cpu:.0f} s of CPU, more than the {budget.cpu:.0f} s of {BUDGET}: make its tests"
                " cheaper, leave a share of them to make soak, or raise the budget and say why in the commit"
            )
    return said
