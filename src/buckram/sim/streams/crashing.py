"""Exhaustive crashes: an operation is played once, counting where its process speaks to anybody, then once for each of
these places with a crash just before it; and once for each change of metadata with its request or its reply lost.

Between two messages a crash makes no difference to anybody else, so these are all crashes that there are.
"""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from buckram.sim.engine.schedules import ScheduleResult
from buckram.sim.streams.bench import Bench, bench_plan, play
from buckram.sim.streams.operations import DRILLS, Spy


def drill(name: str, spy: Spy, *, echo: Callable[[str], None] | None = None, **options: Any) -> ScheduleResult:
    """One play of the operation, with what the spy says going wrong."""

    async def play_drill(bench: Bench) -> None:
        await DRILLS[name](bench, spy)

    return play(f"drill {name}", play_drill, bench_plan(bookies=4), echo=echo, **options)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """What goes wrong: a crash just before a handle, or the n-th change of metadata lost before or after."""

    name: str
    crash_at: int | None = None
    lose: int | None = None
    when: str = ""

    def __str__(self) -> str:
        what = f"crash at handle {self.crash_at}" if self.lose is None else f"change {self.lose} lost {self.when}"
        return f"{self.name}: {what}"

    def spy(self) -> Spy:
        return Spy(crash_at=self.crash_at, lose=self.lose, when=self.when)


def crash_points(name: str) -> tuple[list[CrashPoint], ScheduleResult]:
    """Play it once, without anything going wrong."""
    spy = Spy()
    outcome = drill(name, spy)
    crashes = [CrashPoint(name, crash_at=handle) for handle in sorted(dict.fromkeys(spy.places))]
    losses = [CrashPoint(name, lose=n, when=when) for n in range(1, spy.mutations + 1) for when in ("after", "before")]
    return crashes + losses, outcome


def run_crash_point(place: CrashPoint) -> tuple[CrashPoint, list[str], dict[str, int]]:
    logging.disable(logging.CRITICAL)
    outcome = drill(place.name, place.spy())
    gc.collect()
    problems = [str(violation) for violation in outcome.violations[:1]] or [outcome.failed] * bool(outcome.failed)
    return place, problems, outcome.evaluated


def sweep(only: str | None, jobs: int) -> int:
    """All places of all operations, or of one; the sum as JSON on standard output."""
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
    failed += sum(_told(one) for one in _all(work, jobs))
    sys.stdout.write(json.dumps({"operations": len(found), "places": found, "violations": failed}) + "\n")
    return 1 if failed else 0


def _told(one: tuple[CrashPoint, list[str], dict[str, int]]) -> bool:
    place, problems, _ = one
    if problems:
        sys.stderr.write(f"{place}: {problems[0]}\n")
    return bool(problems)


def _all(work: list[CrashPoint], jobs: int) -> Iterator[tuple[CrashPoint, list[str], dict[str, int]]]:
    if jobs <= 1:
        yield from map(run_crash_point, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run_crash_point, work)


__all__ = ["DRILLS", "CrashPoint", "crash_points", "drill", "run_crash_point", "sweep"]
