"""python -m buckram.sim: run simulated lives, replay one, or prove the harness with planted bugs.

The last line on standard output is JSON; everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from simulator.administration.subject import Administration
from simulator.database.subject import Databases
from simulator.engine.resuming import InUse, Resumed, code_of
from simulator.engine.spreading import cores
from simulator.engine.subject import Subject
from simulator.engine.swarm import run_seeds, shrink
from simulator.healing.subject import Healing
from simulator.ledgers.subject import Ledgers
from simulator.machine.subject import Machines
from simulator.objects.subject import ObjectStores
from simulator.replication.subject import Replications
from simulator.streams.crashing import sweep
from simulator.streams.subject import Streams


def _pipelines() -> Subject:
    from simulator.pipeline.subject import Pipelines  # it loads PySpark, which takes a second

    return Pipelines()


def _archives() -> Subject:
    from simulator.archives.subject import Archives  # it loads PyArrow

    return Archives()


def _gateways() -> Subject:
    from simulator.gateways.subject import Gateways  # it loads the HTTP server

    return Gateways()


SUBJECTS: Mapping[str, tuple[Callable[[], Subject], str]] = {
    "streams": (Streams, "lives of streams"),
    "archives": (_archives, "lives of streams' forks, history, imports and exports"),
    "healing": (Healing, "lives of self-healing"),
    "machine": (Machines, "lives of replicated machines"),
    "database": (Databases, "lives of replicated databases"),
    "objects": (ObjectStores, "lives of objects"),
    "pipeline": (_pipelines, "lives of Spark's pipelines"),
    "replication": (Replications, "lives of two clusters and a copy between them"),
    "administration": (Administration, "lives of administration"),
    "gateways": (_gateways, "lives of gateways and their HTTP clients"),
}
"""Options that choose what lives are about."""
UNFINISHED = 3
"""Exit code of a run with --resume whose lives are not all done."""


def _seeds(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    try:
        return int(first), int(last)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give A:B, for example 0:2000 (B is not included)") from None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m buckram.sim",
        description="Simulated lives of a cluster, judged by the protocol's invariants.",
        epilog="example: python -m buckram.sim --seeds 0:2000 --minutes 60 --resume lives.jsonl; a violation prints the"
        " command that replays it; with --resume the exit code is 3 while lives are left",
    )
    for name, (_, about) in SUBJECTS.items():
        parser.add_argument(f"--{name}", action="store_true", help=f"{about} instead of ledgers")
    parser.add_argument(
        "--crash-points",
        action="store_true",
        help="with --streams: a crash and a lost reply at every step of each operation",
    )
    parser.add_argument("--seeds", type=_seeds, metavar="A:B", help="run the lives A to B-1")
    parser.add_argument("--seed", type=int, metavar="N", help="run one life")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happens")
    parser.add_argument("--faults", metavar="LIST", help="with --seed: these faults instead of the seed's own")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop after M minutes")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="with --seeds: go on where the last run ended")
    parser.add_argument(
        "--any-code", action="store_true", help="with --resume: count lives that ran on other code, too"
    )
    parser.add_argument("--jobs", type=int, default=cores(), metavar="J", help="processes (default: one a core)")
    parser.add_argument("--mutants", action="store_true", help="plant each known bug and see whether it is caught")
    parser.add_argument("--only", metavar="NAME", help="with --mutants: this one only")
    parser.add_argument("--budget", type=int, metavar="SEEDS", help="with --mutants: at most this many seeds each")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    of_streams = options.streams or options.crash_points
    chosen = "streams" if of_streams else next((name for name in SUBJECTS if getattr(options, name)), "")
    subject = SUBJECTS[chosen][0]() if chosen else Ledgers()
    if options.mutants:
        return subject.hunt(options.budget, options.jobs, options.only)
    if options.crash_points:
        return sweep(options.only, options.jobs)
    if options.seed is not None:
        return _one(subject, options.seed, options.trace, options.faults)
    if options.seeds is None:
        parser.error(f"give --seeds A:B, --seed N{', --mutants or --crash-points' if of_streams else ' or --mutants'}")
    return _many(subject, options)


def _say(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def _one(subject: Subject, seed: int, trace: bool, listed: str | None) -> int:
    faults = None
    if listed is not None:
        faults, known = [fault for fault in listed.split(",") if fault], subject.fault_names()
        if unknown := [fault for fault in faults if fault not in known]:
            print(f"unknown faults {unknown}; there are: {', '.join(known)}", file=sys.stderr)
            return 2
    result = subject.live(seed, faults=faults, echo=(lambda line: print(line, file=sys.stderr)) if trace else None)
    totals = subject.totals()
    totals.add(result)
    for violation in result.violations:
        print(f"VIOLATION {violation}", file=sys.stderr)
    if result.violations and not trace:
        print(f"replay: {shrink(subject, seed, result.violations[0].invariant)}", file=sys.stderr)
    line = json.loads(totals.line())
    line["trace_hash"] = result.trace_hash
    print(json.dumps(line))
    return 1 if result.violations else 0


def _many(subject: Subject, options: argparse.Namespace) -> int:
    first, last = options.seeds
    run = partial(run_seeds, subject, first, last, jobs=options.jobs, minutes=options.minutes, say=_say)
    if options.resume is None:
        totals = run()
    else:
        try:
            with Resumed(options.resume, subject.option, code_of(), any_code=options.any_code) as resumed:
                if resumed.others:
                    _say(f"{resumed.others} lives in {options.resume} ran on other code and do not count\n")
                totals = run(resumed=resumed)
        except InUse as error:
            print(error, file=sys.stderr)
            return 2
    failed, left = bool(totals.failed), last - first - totals.lives
    unfinished = options.resume is not None and left > 0
    if not unfinished and (missing := totals.missing()):
        print(f"too seldom evaluated or reached in {totals.lives} lives: {', '.join(missing)}", file=sys.stderr)
        failed = True
    print(totals.line())
    return 1 if failed else UNFINISHED if unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
