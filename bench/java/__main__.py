"""Measures rows of the comparison, remembers what is done, prints the table and one JSON line; exit code 1 when a must
does not hold."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from bench.java.figures import FIGURES, Figure, Outcome, outcome
from bench.java.once import FILLING, ONCE
from bench.java.report import as_json, show
from bench.java.runs import Run, Session
from bench.java.state import FOLDER, State, version


def chosen(names: Sequence[str]) -> list[Figure]:
    """Figures by name, or all figures of a case by the case's name."""
    return [f for f in FIGURES if not names or f.name in names or Run.parse(f.ours).case in names]


def plan(figures: Sequence[Figure], rounds: int) -> list[tuple[int, Run]]:
    """What to measure, in order. The two sides of a figure follow each other and take turns in going first; Apache's
    v3 client comes last, in rounds of its own, so that code compiled for v2 is measured before v3 changes it."""
    keys: list[str] = []
    for figure in figures:
        keys += [key for key in (figure.theirs, figure.ours, figure.shown) if key is not None]
    runs = [Run.parse(key) for key in dict.fromkeys(keys)]
    steps: list[tuple[int, Run]] = []
    for older in (False, True):
        group = [run for run in runs if (run.client == "apache-3") is older and run.case not in ONCE]
        for number in range(rounds):
            ordered = _swapped(group) if number % 2 else group
            steps += [(number, run) for run in ordered]
    # What fills the disk goes by side: there may not be room for the data of both.
    once = [run for case in ONCE for run in runs if run.case == case]
    once.sort(key=lambda run: run.bookies if run.case in FILLING else "")
    return steps + [(0, run) for run in once]


def _swapped(runs: Sequence[Run]) -> list[Run]:
    """Within each case in opposite order."""
    cases = dict.fromkeys(run.case for run in runs)
    return [run for case in cases for run in reversed([run for run in runs if run.case == case])]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.java", description=__doc__)
    known = ", ".join(figure.name for figure in FIGURES)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {known}; or a case")
    parser.add_argument("--rounds", type=int, default=5, help="of throughput and paced rows (default 5)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each slice (default 20)")
    parser.add_argument("--wait", type=float, default=60.0, help="for quiet before each slice, at most (default 60 s)")
    parser.add_argument("--again", action="store_true", help="forget what is measured already")
    parser.add_argument("--keep", action="store_true", help="keep what is measured, although the sources changed")
    parser.add_argument("--list", action="store_true", help="say what the rows are")
    options = parser.parse_args()
    if options.list:
        for figure in FIGURES:
            print(f"{figure.name:16} {figure.title}")
        return 0
    figures = chosen(options.rows)
    if not figures or (options.rows and not all(chosen([row]) for row in options.rows)):
        parser.error(f"no such row; known: {known}")
    state = State(FOLDER, version(), anew=options.again, any_version=options.keep)
    failed = _measure(plan(figures, options.rounds), state, seconds=options.seconds, wait_s=options.wait)
    found = [outcome(figure, state.rounds) for figure in figures]
    show(list(zip(figures, found, strict=True)), state.version)
    outcomes: list[Outcome] = [one for one in found if one is not None]
    print(json.dumps(as_json(outcomes, state)), flush=True)
    return 1 if failed or len(outcomes) < len(figures) or not all(one.must_met for one in outcomes) else 0


def _measure(steps: Sequence[tuple[int, Run]], state: State, *, seconds: float, wait_s: float) -> bool:
    """Measure what is not measured yet; whether something failed."""
    missing = [(number, run) for number, run in steps if not state.known(number, run.key)]
    if not missing:
        return False
    failed = False
    session = Session(seconds=seconds, wait_s=wait_s)
    try:
        for number, run in missing:
            print(f"round {number + 1}: {run.key} ...", end=" ", file=sys.stderr, flush=True)
            try:
                figures = session.measure(run)
            except (RuntimeError, OSError) as error:
                failed = True
                print(f"failed: {error}", file=sys.stderr, flush=True)
                continue
            state.put(number, run.key, figures)
            print(_short(figures), file=sys.stderr, flush=True)
    finally:
        session.close()
    return failed


def _short(figures: dict[str, object]) -> str:
    return ", ".join(f"{key} {value:,.6g}" for key, value in figures.items() if isinstance(value, (int, float)))


if __name__ == "__main__":
    raise SystemExit(main())
