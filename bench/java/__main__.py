"""Measures rows of the comparison, saves finished ones, prints the table and one JSON line; exit code 1 when a required
value is not met. With NET=1 every bookie is on a machine of its own (bench/machines.py)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.java.docs import write_docs
from bench.java.figures import FIGURES, Figure, Outcome, outcome
from bench.java.plan import PLOTTED, chosen, measurements, order
from bench.java.report import as_json, show
from bench.java.runs import Run, Session
from bench.java.state import FOLDER, State, version
from bench.machines import network, wanted


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.java", description=__doc__)
    known = ", ".join(figure.name for figure in FIGURES)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {known}; or a case")
    parser.add_argument("--rounds", type=int, default=5, help="of throughput and paced rows (default 5)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each slice (default 20)")
    parser.add_argument("--wait", type=float, default=60.0, help="for quiet before each slice, at most (default 60 s)")
    parser.add_argument("--share", type=float, default=1.0, help="of the data of long fills, for trials (default 1)")
    parser.add_argument("--again", action="store_true", help="forget what is measured already")
    parser.add_argument("--keep", action="store_true", help="keep what is measured, although the sources changed")
    parser.add_argument("--docs", action="store_true", help="write table and plots into docs/")
    parser.add_argument("--list", action="store_true", help="say what the rows are")
    options = parser.parse_args()
    if options.list:
        for figure in FIGURES:
            print(f"{figure.name:16} {figure.title}")
        return 0
    figures = chosen(options.rows)
    if not figures or (options.rows and not all(chosen([row]) for row in options.rows)):
        parser.error(f"no such row; known: {known}")
    apart = wanted(os.environ)
    if apart and options.docs:
        parser.error("--docs writes the figures of one machine; leave NET=1 or --docs away")
    with network(apart):
        return _run(options, figures, FOLDER / "net" if apart else FOLDER)


def _run(options: argparse.Namespace, figures: Sequence[Figure], folder: Path) -> int:
    state = State(folder, version(), anew=options.again, any_version=options.keep)
    session = partial(Session, seconds=options.seconds, wait_s=options.wait, share=options.share)
    runs = [*measurements(figures), *([] if options.rows else PLOTTED)]
    failed = _measure(order(runs, options.rounds), state, session)
    found = [outcome(figure, state.rounds) for figure in figures]
    show(list(zip(figures, found, strict=True)), state.version)
    if options.docs:
        write_docs(list(zip(figures, found, strict=True)), state)
    outcomes: list[Outcome] = [one for one in found if one is not None]
    print(json.dumps(as_json(outcomes, state)), flush=True)
    return 1 if failed or len(outcomes) < len(figures) or not all(one.must_met for one in outcomes) else 0


def _measure(steps: Sequence[tuple[int, Run]], state: State, make_session: Callable[[], Session]) -> bool:
    """Run the missing measurements; return whether any of them failed."""
    missing = [(number, run) for number, run in steps if not state.known(number, run.key)]
    if not missing:
        return False
    failed = False
    session = make_session()
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
