"""Runs every mutant of streams until an invariant catches it: `python -m buckram.sim --streams --mutants`."""

from __future__ import annotations

import gc
import json
import sys

from simulator.engine.checkers.report import Violation
from simulator.engine.hunting import Kill, first_caught, hunt_all
from simulator.streams.crashing import CrashPoint, crash_points, drill
from simulator.streams.life import run_stream_life
from simulator.streams.mutants import compacting, forking, isolating, keeping, reading, writing
from simulator.streams.mutants.base import Mutant
from simulator.streams.names import INVARIANTS
from simulator.streams.plan import make_stream_plan
from simulator.streams.scenarios import run_stream_scenario

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for part in (writing, reading, keeping, compacting, forking, isolating)
    for mutant in part.MUTANTS
}
MAX_SEED = 50_000


def kill(name: str, budget: int | None = None, *, only_random: bool = False) -> Kill:
    """Run the mutant's directed schedules and operations, then lives that suit it, until an invariant is violated."""
    mutant = MUTANTS[name]
    if not only_random:
        found = _directed(mutant)
        if found is not None:
            return found
    lives = 0
    for seed in range(MAX_SEED):
        plan = make_stream_plan(seed)
        if not mutant.lives(plan):
            continue
        if lives >= (mutant.seeds if budget is None else min(budget, mutant.seeds)):
            break
        lives += 1
        caught = first_caught(run_stream_life(seed, plan=plan, mutant=mutant.apply()).violations, INVARIANTS)
        if caught is not None:
            return Kill(name, caught.invariant, f"seed {seed}", lives, str(caught))
        if lives % 10 == 0:
            gc.collect()
    return Kill(name, "", "", lives, "")


def _directed(mutant: Mutant) -> Kill | None:
    for scenario in mutant.scenarios:
        caught = first_caught(run_stream_scenario(scenario, mutant=mutant.apply()).violations, INVARIANTS)
        if caught is not None:
            return Kill(mutant.name, caught.invariant, scenario, 0, str(caught))
    for operation in mutant.drills:
        with mutant.apply():
            points, outcome = crash_points(operation)
        caught = first_caught(outcome.violations, INVARIANTS)
        if caught is not None:
            return Kill(mutant.name, caught.invariant, operation, 0, str(caught))
        for point in points:
            caught = _run_crash_point(mutant, point)
            if caught is not None:
                return Kill(mutant.name, caught.invariant, str(point), 0, str(caught))
    return None


def _run_crash_point(mutant: Mutant, point: CrashPoint) -> Violation | None:
    outcome = drill(point.name, point.spy(), mutant=mutant.apply())
    return first_caught(outcome.violations, INVARIANTS)


def hunt(budget: int | None, jobs: int, only: str | None = None) -> int:
    """Run all mutants, or one. Print a line for each to standard error, sums as JSON to standard output.

    Return the exit code.
    """
    names = [only] if only else list(MUTANTS)
    for name in names:
        if name not in MUTANTS:
            sys.stderr.write(f"no mutant {name!r}; there are: {', '.join(MUTANTS)}\n")
            return 2
    kills = hunt_all(kill, names, budget, jobs)
    missed = [one.name for one in kills if not one.by]
    sys.stdout.write(
        json.dumps(
            {
                "mutants": len(kills),
                "caught": len(kills) - len(missed),
                "missed": missed,
                "lives": {one.name: one.lives for one in kills},
                "by": {one.name: one.by for one in kills},
            }
        )
        + "\n"
    )
    return 1 if missed else 0


__all__ = ["MUTANTS", "hunt", "kill"]
