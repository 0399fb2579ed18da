"""Runs every mutant until an invariant catches it: `python -m buckram.sim --mutants`."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simulator.engine.checkers.report import INVARIANTS
from simulator.engine.hunting import Kill, first_caught, hunt_all
from simulator.ledgers.life import run_life
from simulator.ledgers.mutants import (
    absence,
    bookie,
    deletions,
    foreign,
    identity,
    racks,
    reading,
    recovery,
    store,
    tenants,
    writer,
)
from simulator.ledgers.mutants.base import Mutant
from simulator.ledgers.plan import make_plan
from simulator.ledgers.scenarios import run_scenario
from simulator.ledgers.scenarios.deletions import INVARIANTS as DELETIONS

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        *writer.MUTANTS,
        *recovery.MUTANTS,
        *reading.MUTANTS,
        *bookie.MUTANTS,
        *deletions.MUTANTS,
        *identity.MUTANTS,
        *absence.MUTANTS,
        *foreign.MUTANTS,
        *store.MUTANTS,
        *racks.MUTANTS,
        *tenants.MUTANTS,
    )
}
RARE = (
    "ack-during-change",
    "change-back",
    "loser-keeps-its-own",
    "reads-beyond-the-lac",
    "first-negative-wins",
    "closed-end-ignored",
    "lac-falls",
    "fence-and-add-race",
    "empty-disk-serves",
    "claimed-lac",
    "files-not-checked",
    "digest-not-checked",
    "drain-before-reset",
    "change-under-deferred-sync",
    "torn-counts-as-lost",
    "cut-file-ignored",
    "recovery-in-one-rack",
    "rest-proves-nothing",
)
"""Mutants that needed more than five random lives."""
MAX_SEED = 50_000


def _seeds(mutant: Mutant) -> Iterator[int]:
    return (seed for seed in range(MAX_SEED) if mutant.lives(make_plan(seed)))


def kill(name: str, budget: int | None = None, *, only_random: bool = False) -> Kill:
    """Run the mutant's directed schedules, then lives that suit it, until an invariant is violated."""
    mutant = MUTANTS[name]
    rules = (*INVARIANTS, *DELETIONS)
    for scenario in () if only_random else mutant.scenarios:
        for seed in range(mutant.scenario_seeds):
            found = first_caught(run_scenario(scenario, seed, mutant=mutant.apply()).violations, rules)
            if found is not None:
                return Kill(name, found.invariant, scenario, 0, str(found))
    lives = 0
    for seed in _seeds(mutant):
        if lives >= (mutant.seeds if budget is None else min(budget, mutant.seeds)):
            break
        lives += 1
        found = first_caught(run_life(seed, mutant=mutant.apply()).violations, INVARIANTS)
        if found is not None:
            return Kill(name, found.invariant, f"seed {seed}", lives, str(found))
        if lives % 20 == 0:
            gc.collect()
    return Kill(name, "", "", lives, "")


def hunt(budget: int | None, jobs: int, only: str | None = None) -> int:
    """Run all mutants, or one. Print a line for each to standard error, sums as JSON to standard output.

    Return the exit code.
    """
    names = [only] if only else list(MUTANTS)
    for name in names:
        if name not in MUTANTS:
            sys.stderr.write(f"no mutant {name!r}; there are: {', '.join(MUTANTS)}\n")
            sys.stderr.write("those that tests must kill: python -m tests.mutants.killing NAME\n")
            return 2
    kills = hunt_all(kill, names, budget, jobs)
    missed = [one.name for one in kills if not one.by]
    killed_by_tests = {} if only else _killed_by_tests(jobs)
    missed += killed_by_tests.get("missed", [])
    line = {
        "mutants": len(kills),
        "caught": sum(1 for one in kills if one.by),
        "missed": missed,
        "lives": {one.name: one.lives for one in kills},
        "by": {one.name: one.by for one in kills},
        "for_tests": killed_by_tests.get("mutants", 0),
        "killed_by_tests": killed_by_tests.get("killed", 0),
    }
    sys.stdout.write(json.dumps(line) + "\n")
    return 1 if missed else 0


def _killed_by_tests(jobs: int) -> dict[str, Any]:
    """Run the mutants that tests must kill, in a checkout. Return their sums."""
    if not Path("tests/mutants/killing.py").exists():
        return {}
    command = [sys.executable, "-m", "tests.mutants.killing", "--jobs", str(jobs)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(run.stdout.strip().rpartition("\n")[2])
    except ValueError:
        return {"missed": [f"all that tests must kill: they ended with {run.returncode}"]}
    return found
