"""Ledgers as a subject of the simulator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from simulator.engine.checkers.report import INVARIANTS, SITUATIONS
from simulator.engine.faults.registry import LEDGERS, fault_names
from simulator.engine.hunting import Kill, first_caught, report_kills
from simulator.engine.plan import Plan
from simulator.engine.planned import PlannedSubject
from simulator.engine.swarm import Totals
from simulator.engine.trace import Echo
from simulator.ledgers.life import Life
from simulator.ledgers.mutants import MUTANTS, Mutant
from simulator.ledgers.plan import make_plan
from simulator.ledgers.scenarios import run_scenario
from simulator.ledgers.scenarios.deletions import INVARIANTS as DELETIONS


class Ledgers(PlannedSubject[Plan]):
    """Lives of ledgers."""

    option, invariants, situations, mutants = "", INVARIANTS, SITUATIONS, MUTANTS

    def plan(self, seed: int) -> Plan:
        return make_plan(seed)

    def life(self, plan: Plan, echo: Echo | None) -> Life:
        return Life(plan, echo)

    def totals(self) -> Totals:
        return Totals()

    def fault_names(self) -> list[str]:
        return fault_names(LEDGERS)

    def directed(self, mutant: Mutant) -> Kill | None:
        for scenario in mutant.scenarios:
            for seed in range(mutant.scenario_seeds):
                violations = run_scenario(scenario, seed, mutant=mutant.apply()).violations
                found = first_caught(violations, (*INVARIANTS, *DELETIONS))
                if found is not None:
                    return Kill(mutant.name, found.invariant, scenario, 0, str(found))
        return None

    def hunt(self, budget: int | None, jobs: int, only: str | None) -> int:
        code = report_kills(self.kill, self.mutants, budget, jobs, only, none_by_tests if only else hunt_by_tests)
        if code == 2:
            sys.stderr.write("those that tests must kill: python -m tests.mutants.killing NAME\n")
        return code


def none_by_tests(jobs: int) -> tuple[list[str], dict[str, int]]:
    """Return what `hunt_by_tests` returns where there is nothing to run."""
    return [], {"for_tests": 0, "killed_by_tests": 0}


def hunt_by_tests(jobs: int) -> tuple[list[str], dict[str, int]]:
    """Run the mutants that tests must kill, in a checkout. Return the missed ones, and the sums."""
    if not Path("tests/mutants/killing.py").exists():
        return none_by_tests(jobs)
    command = [sys.executable, "-m", "tests.mutants.killing", "--jobs", str(jobs)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        found = json.loads(run.stdout.strip().rpartition("\n")[2])
    except ValueError:
        return [f"all that tests must kill: they ended with {run.returncode}"], none_by_tests(jobs)[1]
    counts = {"for_tests": found.get("mutants", 0), "killed_by_tests": found.get("killed", 0)}
    return found.get("missed", []), counts


run_life = Ledgers().run
