"""Crashes at every step of an operation: it runs once to find where its process sends messages, then once for each
message with a crash just before it, and for each change of metadata with the request or the reply lost.

A crash between two messages is the same for all other processes as one before the second, so these are all crashes.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from simulator.engine.schedules import ScheduleResult
from simulator.engine.spreading import spread
from simulator.engine.trace import Echo
from simulator.streams.bench import Bench, bench_plan, play
from simulator.streams.operations import DRILLS, Spy


def drill(name: str, spy: Spy, *, echo: Echo | None = None, **options: Any) -> ScheduleResult:
    """Run the operation once, with the fault of the spy."""

    async def play_drill(bench: Bench) -> None:
        await DRILLS[name](bench, spy)

    plan = bench_plan(bookies=4)
    if name == "compact":  # writers must not join the segments by themselves, so that the compaction has work
        plan.cluster.configs.client = replace(plan.cluster.configs.client, join_segments=0)
    return play(f"drill {name}", play_drill, plan, echo=echo, **options)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The fault of one run: a crash before a step of the process, or a lost request or reply of the n-th change."""

    name: str
    crash_at: int | None = None
    lose: int | None = None
    when: str = ""

    def __str__(self) -> str:
        what = f"crash at handle {self.crash_at}" if self.lose is None else f"change {self.lose} lost {self.when}"
        return f"{self.name}: {what}"

    def spy(self) -> Spy:
        return Spy(crash_at=self.crash_at, lose=self.lose, when=self.when)


class CrashPointResult(NamedTuple):
    """The result of one run: violations or other problems, and how often each invariant was evaluated."""

    place: CrashPoint
    problems: list[str]
    evaluated: dict[str, int]


def crash_points(name: str) -> tuple[list[CrashPoint], ScheduleResult]:
    """Run the operation once without a fault. Return its crash points and the result of this run."""
    spy = Spy()
    outcome = drill(name, spy)
    crashes = [CrashPoint(name, crash_at=step) for step in sorted(dict.fromkeys(spy.crash_steps))]
    losses = [CrashPoint(name, lose=n, when=when) for n in range(1, spy.mutations + 1) for when in ("after", "before")]
    return crashes + losses, outcome


def run_crash_point(place: CrashPoint) -> CrashPointResult:
    """Run the operation with this fault."""
    logging.disable(logging.CRITICAL)
    outcome = drill(place.name, place.spy())
    gc.collect()
    problems = [str(violation) for violation in outcome.violations[:1]] or [outcome.failed] * bool(outcome.failed)
    return CrashPointResult(place, problems, outcome.evaluated)


def sweep(only: str | None, jobs: int) -> int:
    """Run all crash points of all operations, or of one. Print sums as JSON; return the exit code."""
    if only is not None and only not in DRILLS:
        sys.stderr.write(f"no operation {only!r}; there are: {', '.join(DRILLS)}\n")
        return 2
    found: dict[str, int] = {}
    work: list[CrashPoint] = []
    failed = 0
    for name in [only] if only else DRILLS:
        there, outcome = crash_points(name)
        work += there
        found[name] = len(there)
        if not outcome.ok:
            failed += 1
            sys.stderr.write(f"{name}, nothing going wrong: {outcome.violations[:1]} {outcome.failed}\n")
    failed += sum(_report_problem(one) for one in spread(run_crash_point, work, jobs))
    sys.stdout.write(json.dumps({"operations": len(found), "places": found, "violations": failed}) + "\n")
    return 1 if failed else 0


def _report_problem(one: CrashPointResult) -> bool:
    place, problems, _ = one
    if problems:
        sys.stderr.write(f"{place}: {problems[0]}\n")
    return bool(problems)


__all__ = ["DRILLS", "CrashPoint", "crash_points", "drill", "run_crash_point", "sweep"]
