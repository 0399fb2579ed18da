"""Selection and order of the measurements that make up some figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.java.figures import FIGURES, Figure
from bench.java.once import FILLING, ONCE
from bench.java.runs import RATES, Run

PLOTTED = tuple(Run(f"rate-{rate}", *side) for rate in RATES for side in (("apache-2", "apache"), ("ours", "ours")))
"""Measured once, for the plots only."""


def chosen(names: Sequence[str]) -> list[Figure]:
    """Figures by name, or all figures of a case by the case's name; all of them where nothing is named."""
    return [f for f in FIGURES if not names or f.name in names or Run.parse(f.ours).case in names]


def measurements(figures: Sequence[Figure]) -> list[Run]:
    keys: list[str] = []
    for figure in figures:
        keys += [key for key in (figure.theirs, figure.ours, figure.shown) if key is not None]
    return [Run.parse(key) for key in dict.fromkeys(keys)]


def order(runs: Sequence[Run], rounds: int) -> list[tuple[int, Run]]:
    """(round, measurement). The two sides of a case follow each other and take turns in going first. Apache's v3 client
    comes after all v2, in rounds of its own, so that code compiled for v2 is measured before v3 changes it."""
    repeated = [run for run in runs if run.case not in ONCE and run not in PLOTTED]
    steps: list[tuple[int, Run]] = []
    for older in (False, True):
        group = [run for run in repeated if (run.client == "apache-3") is older]
        for number in range(rounds):
            steps += [(number, run) for run in _by_case(group, swapped=number % 2 == 1)]
    # What fills the disk goes by side: there may not be room for the data of both.
    once = [run for case in ONCE for run in runs if run.case == case]
    once.sort(key=lambda run: run.bookies if run.case in FILLING else "")
    return steps + [(0, run) for run in [*(run for run in runs if run in PLOTTED), *once]]


def _by_case(runs: Sequence[Run], *, swapped: bool) -> list[Run]:
    """Case by case; `swapped`: in opposite order within each."""
    cases = dict.fromkeys(run.case for run in runs)
    return [run for case in cases for run in runs[:: -1 if swapped else 1] if run.case == case]
