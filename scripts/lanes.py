"""Order of the parts of the tests, and which of them run side by side: parts that wait run beside parts that compute.

A part is a folder of tests, or some of the files of a long one. Pure, from tests/budget.toml: the seconds and the
memory that each part needs, and the share of a processor core that it keeps busy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from scripts.timings import UNKNOWN, Budget

CORES = 2
LOAD = 1.6
"""Maximum load per core of the parts that run side by side. It is above 1 because parts wait in turn; more would make
deadlines of tests late."""
MEMORY_GB = 7.0
"""Maximum memory of all running parts together, GB: a machine with 8 GB runs the tests."""
LINT = "lint"
"""The part that is no folder of tests."""


class Part(NamedTuple):
    """One of `of` parts of a folder, of which `number` is counted from 1; the whole folder where `of` is 1."""

    folder: str
    number: int = 1
    of: int = 1

    def __str__(self) -> str:
        return self.folder if self.of == 1 else f"{self.folder} ({self.number} of {self.of})"


@dataclass(frozen=True)
class Costs:
    """Costs of parts, from the budgets of their folders."""

    budgets: Mapping[str, Budget]

    def of(self, part: Part) -> Budget:
        return self.budgets.get(part.folder, UNKNOWN)

    def seconds(self, part: Part) -> float:
        return self.of(part).seconds / part.of

    def load(self, part: Part) -> float:
        """Cores that it keeps busy."""
        budget = self.of(part)
        return budget.usual / budget.seconds


def parts_of(folders: Iterable[str], budgets: Mapping[str, Budget]) -> list[Part]:
    found: list[Part] = []
    for folder in folders:
        of = budgets.get(folder, UNKNOWN).parts
        found += [Part(folder, number, of) for number in range(1, of + 1)]
    return found


def next_part(left: Iterable[Part], running: Iterable[Part], costs: Costs, cores: int = CORES) -> Part | None:
    """Return the longest part that fits beside those that run; None if each has to wait."""
    running = list(running)
    load, memory = sum(costs.load(part) for part in running), sum(costs.of(part).memory for part in running)

    def fits(part: Part) -> bool:
        return load + costs.load(part) <= LOAD * cores and memory + costs.of(part).memory <= MEMORY_GB

    return max((part for part in left if not running or fits(part)), key=costs.seconds, default=None)


def planned_seconds(parts: Iterable[Part], lanes: int, costs: Costs, cores: int = CORES) -> float:
    """Return the elapsed seconds of a run if every part needs its budget and the cores are shared fairly."""
    left, needed, now = list(parts), dict[Part, float](), 0.0
    while left or needed:
        while len(needed) < lanes and (part := next_part(left, needed, costs, cores)) is not None:
            left.remove(part)
            needed[part] = costs.seconds(part)
        pace = min(1.0, cores / sum(costs.load(part) for part in needed))
        ended = min(needed, key=lambda part: needed[part])
        passed = needed.pop(ended)
        now += passed / pace
        needed = {part: seconds - passed for part, seconds in needed.items()}
    return now


def split(files: Mapping[str, float], of: int, together: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Files with what each needs, as `of` lists that need about the same; each is in the order of names.

    `together`: for each file the names of groups of tests of which a run has a share: files with the same one stay in
    one list, so that a share is the same however a folder is split.
    """
    bundles: list[tuple[set[str], list[str]]] = []
    for name in sorted(files):
        groups, members = set(together.get(name, ())), [name]
        for bundle in [one for one in bundles if one[0] & groups]:
            bundles.remove(bundle)
            groups, members = groups | bundle[0], bundle[1] + members
        bundles.append((groups, members))
    shares: list[list[str]] = [[] for _ in range(of)]
    sums = [0.0] * of
    for needed, members in sorted(((-sum(files[name] for name in members), members) for _, members in bundles)):
        least = sums.index(min(sums))
        shares[least] += members
        sums[least] -= needed
    return [sorted(share) for share in shares]
