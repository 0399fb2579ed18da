"""Planted bugs of self-healing, and the hunt for them: `python -m buckram.sim --healing --mutants`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from buckram.sim.engine.edits import edited
from buckram.sim.engine.hunting import Kill, first_caught, hunt_all
from buckram.sim.engine.planting import Patches
from buckram.sim.healing.life import run_healing_life
from buckram.sim.healing.names import INVARIANTS

_REPAIR = "buckram.healing.ledger_repair:LedgerRepair"
_WORKER = "buckram.healing.replicator:Replicator"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug. `rows` are the invariants that it breaks, `seeds` its budget of lives."""

    name: str
    rows: str
    bug: str
    apply: Patches
    seeds: int = 40


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "named-before-copied",
            "H1, M7",
            "metadata names the new member although nothing was copied",
            edited(("buckram.healing.fragment_copy:FragmentCopy.to", "    ranges.reverse()\n", "    ranges.clear()\n")),
        ),
    )
}


def kill(name: str, budget: int | None = None) -> Kill:
    """Run lives until an invariant is violated."""
    mutant = MUTANTS[name]
    lives = mutant.seeds if budget is None else min(budget, mutant.seeds)
    for seed in range(lives):
        caught = first_caught(run_healing_life(seed, mutant=mutant.apply()).violations, INVARIANTS)
        if caught is not None:
            return Kill(name, caught.invariant, f"seed {seed}", seed + 1, str(caught))
    return Kill(name, "", "", lives, "")


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
    line = {
        "mutants": len(kills),
        "caught": len(kills) - len(missed),
        "missed": missed,
        "lives": {one.name: one.lives for one in kills},
        "by": {one.name: one.by for one in kills},
    }
    sys.stdout.write(json.dumps(line) + "\n")
    return 1 if missed else 0
