"""python -m buckram.sim --streams: the arguments and the last line are those of the ledger simulator."""

from __future__ import annotations

import gc
import json
import logging
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field

from buckram.sim.engine.checkers.report import Violation
from buckram.sim.engine.lives import LifeResult
from buckram.sim.engine.swarm import Totals, run_seeds
from buckram.sim.ledgers.faults.registry import STREAMS, names
from buckram.sim.streams.life import run_stream_life
from buckram.sim.streams.names import INVARIANTS, SITUATIONS
from buckram.sim.streams.plan import make_stream_plan


@dataclass(slots=True)
class StreamTotals(Totals):
    evaluated: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    reached: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SITUATIONS, 0))

    def add(self, result: LifeResult) -> None:
        """Counts of streams only; violations of anything."""
        result.evaluated = {name: count for name, count in result.evaluated.items() if name in INVARIANTS}
        result.reached = {name: count for name, count in result.reached.items() if name in SITUATIONS}
        Totals.add(self, result)


def run(options: Namespace, usage: Callable[[str], object]) -> int:
    if options.mutants:
        from buckram.sim.streams.mutants.hunt import hunt

        return hunt(options.budget, options.jobs, options.only)
    if options.crash_points:
        from buckram.sim.streams.crashing import sweep

        return sweep(options.only, options.jobs)
    if options.seed is not None:
        return _one(options.seed, options.trace, options.faults)
    if options.seeds is None:
        usage("give --seeds A:B, --seed N, --mutants or --crash-points")
    first, last = options.seeds
    return _many(first, last, options.jobs, options.minutes)


def replay_command(seed: int, faults: list[str] | None = None) -> str:
    chosen = f' --faults "{",".join(faults)}"' if faults is not None else ""
    return f"python -m buckram.sim --streams --seed {seed}{chosen} --trace"


def shrink(seed: int, invariant: str) -> str:
    """The command that shows the violation with as few faults as leaving out one after the other gives."""
    faults, kept = make_stream_plan(seed).faults, None
    for fault in list(faults):
        fewer = list(faults)
        fewer.remove(fault)
        plan = make_stream_plan(seed)
        plan.cluster.faults = fewer
        try:
            found = run_stream_life(seed, plan=plan).violations
        except Exception:
            continue
        if any(violation.invariant == invariant for violation in found):
            faults = kept = fewer
    return replay_command(seed, kept)


def run_chunk(seeds: list[int]) -> list[LifeResult]:
    logging.disable(logging.CRITICAL)
    results = []
    for seed in seeds:
        try:
            result = run_stream_life(seed)
        except Exception:
            text = traceback.format_exc(limit=-4)
            result = LifeResult(seed, "?", [Violation("harness", text, 0.0)], {}, {}, 0, 0, 0, 0, 0.0, "broken")
        result.lines.clear()
        if result.violations:
            result.replay = shrink(seed, result.violations[0].invariant)
        results.append(result)
        gc.collect()
    return results


def _one(seed: int, trace: bool, faults: str | None) -> int:
    plan = make_stream_plan(seed)
    if faults is not None:
        plan.cluster.faults = [fault for fault in faults.split(",") if fault]
        if unknown := [fault for fault in plan.faults if fault not in names(STREAMS)]:
            sys.stderr.write(f"unknown faults {unknown}; there are: {', '.join(names(STREAMS))}\n")
            return 2
    result = run_stream_life(seed, plan=plan, echo=_say_line if trace else None)
    totals = StreamTotals()
    totals.add(result)
    for violation in result.violations:
        sys.stderr.write(f"VIOLATION {violation}\n")
    if result.violations and not trace:
        sys.stderr.write(f"replay: {shrink(seed, result.violations[0].invariant)}\n")
    line = json.loads(totals.line())
    line["trace_hash"] = result.trace_hash
    sys.stdout.write(json.dumps(line) + "\n")
    return 1 if result.violations else 0


def _say_line(text: str) -> None:
    _say(f"{text}\n")


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _many(first: int, last: int, jobs: int, minutes: float | None) -> int:
    totals = run_seeds(first, last, jobs=jobs, minutes=minutes, say=_say, run=run_chunk, totals=StreamTotals())
    failed = bool(totals.failed)
    if missing := totals.missing():
        sys.stderr.write(f"too seldom evaluated or reached in {totals.lives} lives: {', '.join(missing)}\n")
        failed = True
    sys.stdout.write(totals.line() + "\n")
    return 1 if failed else 0


__all__ = ["StreamTotals", "replay_command", "run", "run_chunk", "shrink"]
