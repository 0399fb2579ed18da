"""Planted bugs, and running them until an invariant catches them: the result of one hunt, and hunts for many.

Not here: the bugs (`simulator/ledgers/mutants`, `simulator/streams/mutants`), how they are planted (`planting.py`,
`edits.py`).
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from simulator.engine.checkers.report import Violation
from simulator.engine.planting import Patches
from simulator.engine.spreading import spread

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Mutant(Generic[P]):
    """A planted bug. `rows` are the traps and invariants that it represents, `seeds` its budget of lives."""

    name: str
    rows: str
    bug: str
    apply: Patches
    seeds: int = 40

    def suits(self, plan: P) -> bool:
        """Change the plan so that the bug can show in its life. Return whether it can."""
        return True


@dataclass(frozen=True, slots=True)
class Kill:
    """The result of one hunt.

    `by` is the invariant that caught the bug, "" if none did; `place` is the scenario or seed; `lives` is the number of
    random lives that it took.
    """

    name: str
    by: str
    place: str
    lives: int
    text: str

    def __str__(self) -> str:
        if not self.by:
            return f"MISSED {self.name} after {self.lives} lives"
        return f"{self.name}: {self.by} in {self.place}, after {self.lives} lives: {self.text[:160]}"


class KillMutant(Protocol):
    """Hunts one mutant, with at most `budget` random lives (None: as many as the mutant allows). Must be picklable."""

    def __call__(self, name: str, budget: int | None, /) -> Kill: ...


class HuntElsewhere(Protocol):
    """Hunts further mutants in so many processes. Returns the missed ones, and counts for the sums."""

    def __call__(self, jobs: int, /) -> tuple[list[str], dict[str, int]]: ...


def first_caught(violations: Iterable[Violation], invariants: Iterable[str]) -> Violation | None:
    """Return the first violation of one of these invariants; other violations do not count as catching a bug."""
    counted = tuple(invariants)
    return next((violation for violation in violations if violation.invariant in counted), None)


def hunt_all(kill: KillMutant, names: list[str], budget: int | None, jobs: int) -> list[Kill]:
    """Hunt each of them, in `jobs` processes, and write a line for each to standard error."""
    kills: list[Kill] = []
    for one in spread(partial(_hunt_one, kill, budget), names, jobs):
        kills.append(one)
        sys.stderr.write(f"{one}\n")
        sys.stderr.flush()
    return kills


def report_kills(
    kill: KillMutant,
    known: Iterable[str],
    budget: int | None,
    jobs: int,
    only: str | None = None,
    more: HuntElsewhere | None = None,
) -> int:
    """Hunt all of the `known` mutants, or one. Print a line for each to standard error, sums to standard output.

    `more` is called after that, for what is hunted elsewhere. Return the exit code.
    """
    names = list(known)
    if only is not None and only not in names:
        sys.stderr.write(f"no mutant {only!r}; there are: {', '.join(names)}\n")
        return 2
    kills = hunt_all(kill, [only] if only else names, budget, jobs)
    missed = [one.name for one in kills if not one.by]
    caught = len(kills) - len(missed)
    further, counts = more(jobs) if more is not None else ([], {})
    missed += further
    line = {
        "mutants": len(kills),
        "caught": caught,
        "missed": missed,
        "lives": {one.name: one.lives for one in kills},
        "by": {one.name: one.by for one in kills},
        **counts,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    return 1 if missed else 0


def _hunt_one(kill: KillMutant, budget: int | None, name: str) -> Kill:
    logging.disable(logging.CRITICAL)  # in a process of its own: planted bugs log without end
    return kill(name, budget)
