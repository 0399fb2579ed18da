"""Plays every planted bug until a rule catches it: `python -m buckram.sim --streams --mutants`."""

from __future__ import annotations

import gc
import json
import sys

from buckram.sim.engine.checkers.report import Violation
from buckram.sim.engine.hunting import Kill, first_caught, hunt_all
from buckram.sim.streams.crashing import CrashPoint, crash_points, drill
from buckram.sim.streams.life import run_stream_life
from buckram.sim.streams.mutants import compacting, keeping, reading, writing
from buckram.sim.streams.mutants.base import Mutant
from buckram.sim.streams.names import INVARIANTS
from buckram.sim.streams.plan import make_stream_plan
from buckram.sim.streams.scenarios import run_stream_scenario

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for mutant in (*writing.MUTANTS, *reading.MUTANTS, *keeping.MUTANTS, *compacting.MUTANTS)
}
MAX_SEED = 50_000


def kill(name: str, budget: int | None = None, *, only_random: bool = False) -> Kill:
    """Scenarios, operations, lives, until a rule is violated. `lives` of the Kill counts random lives."""
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
            there, outcome = crash_points(operation)
        caught = first_caught(outcome.violations, INVARIANTS)
        if caught is not None:
            return Kill(mutant.name, caught.invariant, operation, 0, str(caught))
        for place in there:
            caught = _played(mutant, place)
            if caught is not None:
                return Kill(mutant.name, caught.invariant, str(place), 0, str(caught))
    return None


def _played(mutant: Mutant, place: CrashPoint) -> Violation | None:
    outcome = drill(place.name, place.spy(), mutant=mutant.apply())
    return first_caught(outcome.violations, INVARIANTS)


def hunt(budget: int | None, jobs: int, only: str | None = None) -> int:
    """All of them, or one; a line each on standard error, the sum as JSON on standard output."""
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
