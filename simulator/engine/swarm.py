"""Runs many lives in several processes, adds up their counts, and shrinks and prints violations."""

from __future__ import annotations

import gc
import json
import logging
import time
import traceback
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from simulator.engine.checkers.judge import merge
from simulator.engine.checkers.report import INVARIANTS, SITUATIONS, Violation
from simulator.engine.lives import LifeResult
from simulator.engine.spreading import spread
from simulator.engine.subject import Subject

LEAST = 5
"""Minimum evaluations of each invariant and occurrences of each situation in a thousand lives."""
FLOORS = {
    "compaction output written": 200,
    "log file made longer": 200,
    "ledger table loaded at a start": 60,
    "admission verdict FENCED": 20,
    "crash during a sync": 50,
    "M5": 50,
    "M6": 50,
    "M7": 20,
    "M8": 20,
    "a wrong key gave way": 2,
    "damaged superblock refused": 2,
    "an old disk was refused": 3,
}
"""Other minimums: higher ones where faults cause the situation on purpose, lower ones where two rare events meet."""
DIRECTED = frozenset(
    (
        "I27",
        "I29",
        "recovery refused below a promise",
        "a copy was collected before metadata named it",
        "a process that stood still found itself replaced",
    )
)
"""Situations that only directed schedules (`simulator/ledgers/scenarios`) reach, in every run of their tests."""
ENOUGH_LIVES = 1000
"""Number of lives from which on the minimums are checked."""
CHUNK = 20


class Say(Protocol):
    """Writes a report of progress."""

    def __call__(self, text: str, /) -> None: ...


@dataclass(slots=True)
class Totals:
    """The counts of many lives. `failed` has seed, violation and plan of each life with a violation."""

    lives: int = 0
    acked: int = 0
    crashes: int = 0
    faults: int = 0
    evaluated: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    reached: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SITUATIONS, 0))
    failed: list[tuple[int, str, str]] = field(default_factory=list)
    hashes: dict[int, str] = field(default_factory=dict)

    def add(self, result: LifeResult) -> None:
        self.lives += 1
        self.acked += result.acked
        self.crashes += result.crashes
        self.faults += result.faults
        merge(self.evaluated, result.evaluated)
        merge(self.reached, result.reached)
        self.hashes[result.seed] = result.trace_hash
        for violation in result.violations[:1]:
            self.failed.append((result.seed, str(violation), result.plan))

    @property
    def trace_hash(self) -> str:
        """Return the hash of all lives in the order of their seeds, whichever processes they ran in."""
        text = "".join([self.hashes[seed] for seed in sorted(self.hashes)])
        return f"{zlib.crc32(text.encode()):08x}"

    def missing(self) -> list[str]:
        """Return what was evaluated or reached too seldom; nothing for a short run."""
        if self.lives < ENOUGH_LIVES:
            return []
        counts = {**self.evaluated, **self.reached}
        return [f"{name} ({count})" for name, count in counts.items() if count * 1000 < self.floor(name) * self.lives]

    def floor(self, name: str) -> int:
        """Return the minimum count per thousand lives."""
        return 0 if name in DIRECTED else FLOORS.get(name, LEAST)

    def line(self) -> str:
        """Return the counts as JSON."""
        return json.dumps(
            {
                "lives": self.lives,
                "violations": len(self.failed),
                "invariants": self.evaluated,
                "reached": self.reached,
                "acked": self.acked,
                "crashes": self.crashes,
                "faults": self.faults,
                "trace_hash": self.trace_hash,
            }
        )


def _chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    chunk: list[int] = []
    for seed in seeds:
        chunk.append(seed)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def replay_command(subject: Subject, seed: int, faults: list[str] | None = None) -> str:
    """Return the command that runs one life again with its trace."""
    option = f" {subject.option}" if subject.option else ""
    chosen = f' --faults "{",".join(faults)}"' if faults is not None else ""
    return f"python -m buckram.sim{option} --seed {seed}{chosen} --trace"


def shrink(subject: Subject, seed: int, invariant: str) -> str:
    """Return the command that replays the violation, without the faults that it does not need."""
    faults, kept = subject.planned_faults(seed), None
    for fault in list(faults):
        fewer = list(faults)
        fewer.remove(fault)
        try:
            found = subject.live(seed, faults=list(fewer)).violations
        except Exception:
            continue
        if any(violation.invariant == invariant for violation in found):
            faults = kept = fewer
    return replay_command(subject, seed, kept)


def _run_chunk(subject: Subject, seeds: list[int]) -> list[LifeResult]:
    logging.disable(logging.CRITICAL)
    results = []
    for seed in seeds:
        try:
            result = subject.live(seed)
        except Exception:
            text = traceback.format_exc(limit=-4)
            result = LifeResult(seed, "?", [Violation("harness", text, 0.0)], {}, {}, 0, 0, 0, 0, 0.0, "broken")
        result.lines.clear()
        if result.violations:
            result.replay = shrink(subject, seed, result.violations[0].invariant)
        results.append(result)
    gc.collect()
    return results


def run_seeds(
    subject: Subject,
    first: int,
    last: int,
    *,
    jobs: int,
    minutes: float | None = None,
    say: Say = lambda text: None,
) -> Totals:
    """Run the lives first to last-1 and add up their counts.

    With `minutes` the run ends early, after whole chunks of lives. `say` gets reports of progress.
    """
    totals = subject.totals()
    chunks = list(_chunks(range(first, last)))
    gather = _Gather(totals, last - first, None if minutes is None else minutes * 60, say)
    run = partial(_run_chunk, subject)
    gather.all(spread(run, chunks, jobs))
    return totals


@dataclass(slots=True)
class _Gather:
    """Adds up results and reports progress."""

    totals: Totals
    wanted: int
    limit_s: float | None
    say: Say

    def all(self, results: Iterator[list[LifeResult]]) -> None:
        began, totals = time.monotonic(), self.totals
        for chunk in results:
            for result in chunk:
                totals.add(result)
                for violation in result.violations[:1]:
                    self.say(f"seed {result.seed}: {violation}\n  {result.plan}\n  replay: {result.replay}\n")
            seconds = time.monotonic() - began
            rate = totals.lives / seconds
            self.say(f"{totals.lives}/{self.wanted} lives, {rate:.1f}/s, {len(totals.failed)} violations\r")
            if self.limit_s is not None and seconds > self.limit_s:
                break
