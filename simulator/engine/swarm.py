"""Runs many lives in several processes, adds up their counts, and shrinks and prints violations.

A long run keeps its counts in a file and goes on where it ended (`simulator/engine/resuming.py`).
"""

from __future__ import annotations

import gc
import json
import logging
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from simulator.engine.checkers.judge import merge
from simulator.engine.checkers.report import INVARIANTS, SITUATIONS, Violation
from simulator.engine.lives import LifeResult
from simulator.engine.resuming import Resumed
from simulator.engine.spreading import spread_as_done
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
CHUNK = 10
"""Lives that a process runs before it is given others, and that are lost when the run is killed."""


class Say(Protocol):
    """Writes a report of progress."""

    def __call__(self, text: str, /) -> None: ...


class Failure(NamedTuple):
    """A life with a violation, its plan, and the command that replays it."""

    seed: int
    violation: str
    plan: str
    replay: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.violation}\n  {self.plan}\n  replay: {self.replay}\n"


@dataclass(slots=True)
class Totals:
    """The counts of many lives."""

    lives: int = 0
    acked: int = 0
    crashes: int = 0
    faults: int = 0
    evaluated: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    reached: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SITUATIONS, 0))
    failed: list[Failure] = field(default_factory=list)
    hashes: dict[int, str] = field(default_factory=dict)
    cpu_s: float = 0.0
    """CPU seconds of the processes that ran the lives, from their starts on."""

    def add(self, result: LifeResult) -> None:
        self.lives += 1
        self.acked += result.acked
        self.crashes += result.crashes
        self.faults += result.faults
        merge(self.evaluated, result.evaluated)
        merge(self.reached, result.reached)
        self.hashes[result.seed] = result.trace_hash
        for violation in result.violations[:1]:
            self.failed.append(Failure(result.seed, str(violation), result.plan, result.replay))

    def merge(self, other: Totals) -> None:
        """Add the counts of other lives."""
        self.lives += other.lives
        self.acked += other.acked
        self.crashes += other.crashes
        self.faults += other.faults
        self.cpu_s += other.cpu_s
        merge(self.evaluated, other.evaluated)
        merge(self.reached, other.reached)
        self.failed = sorted([*self.failed, *other.failed])
        self.hashes |= other.hashes

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


def _chunks(seeds: Sequence[int], jobs: int) -> Iterator[list[int]]:
    """Cut the seeds into chunks, smaller ones where there are few seeds for so many processes."""
    size = max(1, min(CHUNK, len(seeds) // (2 * jobs)))
    for at in range(0, len(seeds), size):
        yield list(seeds[at : at + size])


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


_cpu_told = 0.0
"""CPU seconds of this process that are counted already."""


def _run_chunk(subject: Subject, seeds: list[int]) -> Totals:
    global _cpu_told
    logging.disable(logging.CRITICAL)
    totals = subject.totals()
    for seed in seeds:
        try:
            result = subject.live(seed)
        except Exception:
            text = traceback.format_exc(limit=-4)
            result = LifeResult(seed, "?", [Violation("harness", text, 0.0)], {}, {}, 0, 0, 0, 0, 0.0, "broken")
        if result.violations:
            result.replay = shrink(subject, seed, result.violations[0].invariant)
        totals.add(result)
    gc.collect()
    cpu = time.process_time()
    totals.cpu_s, _cpu_told = cpu - _cpu_told, cpu
    return totals


def run_seeds(
    subject: Subject,
    first: int,
    last: int,
    *,
    jobs: int,
    minutes: float | None = None,
    say: Say = lambda text: None,
    resumed: Resumed | None = None,
) -> Totals:
    """Run the lives first to last-1 and add up their counts.

    With `minutes` the run ends early, after whole chunks of lives. With `resumed` the lives that it knows are not run
    again but counted, and it gets to know the others. `say` gets reports of progress.
    """
    seeds = range(first, last)
    totals = subject.totals()
    for row in resumed.rows(seeds) if resumed is not None else ():
        totals.merge(totals_of(subject, row))
    for failure in totals.failed:
        say(str(failure))
    progress = Progress(totals, len(seeds), None if minutes is None else minutes * 60)
    chunks = progress.while_time(_chunks([seed for seed in seeds if seed not in totals.hashes], jobs))
    for done in spread_as_done(partial(_run_chunk, subject), chunks, jobs):
        if resumed is not None:
            resumed.append(row_of(done))
        totals.merge(done)
        for failure in done.failed:
            say(str(failure))
        say(f"{progress}\r")
    say(f"{progress}\n")
    return totals


@dataclass(slots=True)
class Progress:
    """How far a run is, how fast it is, and when it will end."""

    totals: Totals
    wanted: int
    limit_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    before: int = field(init=False)
    """Lives that an earlier run has done."""
    cpu_before: float = field(init=False)

    def __post_init__(self) -> None:
        self.began, self.before, self.cpu_before = self.clock(), self.totals.lives, self.totals.cpu_s

    def while_time(self, chunks: Iterable[list[int]]) -> Iterator[list[int]]:
        """Return the chunks until the time is over."""
        for chunk in chunks:
            yield chunk
            if self.limit_s is not None and self.clock() - self.began >= self.limit_s:
                return

    @property
    def rate(self) -> float:
        """Lives a second in this run."""
        return (self.totals.lives - self.before) / max(self.clock() - self.began, 1e-9)

    def __str__(self) -> str:
        totals, ran = self.totals, self.totals.lives - self.before
        told = f"{totals.lives}/{self.wanted} lives, {len(totals.failed)} violations"
        if ran:
            left = (self.wanted - totals.lives) / self.rate / 60
            told += f", {self.rate:.2f} lives/s, {(totals.cpu_s - self.cpu_before) / ran:.2f} s of CPU each"
            told += f", {left:.0f} minutes left" if totals.lives < self.wanted else ""
        return told


def row_of(totals: Totals) -> dict[str, object]:
    """Return the counts as a row of JSON, without those that are zero."""
    row = asdict(totals)
    return row | {name: {key: count for key, count in row[name].items() if count} for name in ("evaluated", "reached")}


def totals_of(subject: Subject, row: Mapping[str, Any]) -> Totals:
    """Return the counts of a row. A name that the subject does not have any more is not counted."""
    totals = subject.totals()
    known = replace(
        totals,
        **{name: row[name] for name in ("lives", "acked", "crashes", "faults", "cpu_s")},
        failed=[Failure(*failure) for failure in row["failed"]],
        hashes={int(seed): digest for seed, digest in row["hashes"].items()},
    )
    for counts, found in ((known.evaluated, row["evaluated"]), (known.reached, row["reached"])):
        counts.update({name: count for name, count in found.items() if name in counts})
    return known
