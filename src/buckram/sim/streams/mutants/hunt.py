"""Plays every planted bug until a rule catches it: `python -m buckram.sim --streams --mutants`."""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import sys
from collections.abc import Iterable, Iterator

from buckram.sim.engine.checkers.report import Violation
from buckram.sim.ledgers.mutants.hunt import Kill
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


def _caught(violations: Iterable[Violation]) -> Violation | None:
    return next((v for v in violations if v.invariant in INVARIANTS), None)


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
        caught = _caught(run_stream_life(seed, plan=plan, mutant=mutant.apply()).violations)
        if caught is not None:
            return Kill(name, caught.invariant, f"seed {seed}", lives, str(caught))
        if lives % 10 == 0:
            gc.collect()
    return Kill(name, "", "", lives, "")


def _directed(mutant: Mutant) -> Kill | None:
    for scenario in mutant.scenarios:
        caught = _caught(run_stream_scenario(scenario, mutant=mutant.apply()).violations)
        if caught is not None:
            return Kill(mutant.name, caught.invariant, scenario, 0, str(caught))
    for operation in mutant.drills:
        with mutant.apply():
            there, outcome = crash_points(operation)
        caught = _caught(outcome.violations)
        if caught is not None:
            return Kill(mutant.name, caught.invariant, operation, 0, str(caught))
        for place in there:
            caught = _played(mutant, place)
            if caught is not None:
                return Kill(mutant.name, caught.invariant, str(place), 0, str(caught))
    return None


def _played(mutant: Mutant, place: CrashPoint) -> Violation | None:
    outcome = drill(place.name, place.spy(), mutant=mutant.apply())
    return _caught(outcome.violations)


def _kill(job: tuple[str, int | None]) -> Kill:
    logging.disable(logging.CRITICAL)  # in a process of its own: planted bugs log without end
    return kill(*job)


def hunt(budget: int | None, jobs: int, only: str | None = None) -> int:
    """All of them, or one; a line each on standard error, the sum as JSON on standard output."""
    names = [only] if only else list(MUTANTS)
    for name in names:
        if name not in MUTANTS:
            sys.stderr.write(f"no mutant {name!r}; there are: {', '.join(MUTANTS)}\n")
            return 2
    kills: list[Kill] = []
    for one in _all([(name, budget) for name in names], jobs):
        kills.append(one)
        sys.stderr.write(f"{one}\n")
        sys.stderr.flush()
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


def _all(work: list[tuple[str, int | None]], jobs: int) -> Iterator[Kill]:
    if jobs <= 1:
        yield from map(_kill, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_kill, work)


__all__ = ["MUTANTS", "hunt", "kill"]
