"""The table of a comparison: ratios, medians, ranges, limits and marks; and the order of its runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.java.figures import FIGURES, Figure, outcome
from bench.java.plan import PLOTTED, chosen, measurements, order
from bench.java.report import number, row
from bench.java.runs import Run

MORE = Figure("speed", "speed", "/s", "one:ours>ours", "one:apache-2>apache", "per_s", 2, 3, False)
LESS = Figure("wait", "wait", "ms", "paced:ours>ours", "paced:apache-2>apache", "p99_ms", 0.5, 0.25, True)
OWN = Figure("size", "size", "MB", "idle:ours>ours", None, "rss_mb", 80, 60, True, shown="idle:apache-2>apache")


def pair(case: str, value: str, ours: float, theirs: float, foreign: float = 0.0) -> dict[str, dict[str, float]]:
    return {
        f"{case}:ours>ours": {value: ours, "foreign_share": foreign},
        f"{case}:apache-2>apache": {value: theirs, "foreign_share": 0.0},
    }


def test_the_median_of_the_ratios_of_all_rounds_counts() -> None:
    rounds = [pair("one", "per_s", 300, 100), pair("one", "per_s", 100, 100), pair("one", "per_s", 500, 200)]
    found = outcome(MORE, rounds)
    assert found is not None
    assert (found.rounds, found.ratio, found.low, found.high) == (3, 2.5, 1.0, 3.0)
    assert (found.ours, found.theirs) == (300, 100)
    assert found.must_met
    assert not found.aim_met


@pytest.mark.parametrize(("ours", "must", "aim"), [(50, True, False), (51, False, False), (25, True, True)])
def test_limits_of_a_figure_where_less_is_better(ours: float, must: bool, aim: bool) -> None:
    found = outcome(LESS, [pair("paced", "p99_ms", ours, 100)])
    assert found is not None
    assert (found.must_met, found.aim_met) == (must, aim)


def test_an_absolute_figure_is_compared_with_its_limit() -> None:
    found = outcome(OWN, [pair("idle", "rss_mb", 70, 150)])
    assert found is not None
    assert (found.ratio, found.theirs, found.must_met, found.aim_met) == (70, 150, True, False)
    alone = outcome(OWN, [{"idle:ours>ours": {"rss_mb": 70}}])
    assert alone is not None
    assert alone.theirs is None


def test_a_round_without_both_sides_is_ignored() -> None:
    half = {"one:ours>ours": {"per_s": 900.0}}
    assert outcome(MORE, [half]) is None
    found = outcome(MORE, [half, pair("one", "per_s", 200, 100)])
    assert found is not None
    assert (found.rounds, found.ratio) == (1, 2)


def test_a_row_names_a_high_share_of_foreign_cpu() -> None:
    quiet, loud = pair("one", "per_s", 200, 100, 0.02), pair("one", "per_s", 200, 100, 0.3)
    assert row(MORE, outcome(MORE, [quiet]))[-1] == ""
    assert row(MORE, outcome(MORE, [quiet, loud]))[-1] == "strangers 30%"


def test_a_row_marks_missed_limits() -> None:
    cells = row(MORE, outcome(MORE, [pair("one", "per_s", 150, 100), pair("one", "per_s", 170, 100)]))
    assert cells[3:6] == ["1.60 (1.50 to 1.70)", ">= 2 x MISSED", ">= 3 x missed"]
    assert "not measured" in row(MORE, None)


@pytest.mark.parametrize(("value", "unit", "shown"), [(191234.5, "/s", "191,234/s"), (0.7349, "ms", "0.735 ms")])
def test_numbers_are_printed_with_three_digits_or_more(value: float, unit: str, shown: str) -> None:
    assert number(value, unit) == shown


def test_figures_have_unique_names_and_aims_stricter_than_limits() -> None:
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)
    for figure in FIGURES:
        if figure.must is None or figure.aim is None:
            assert (figure.must, figure.aim) == (None, None)
            assert figure.name in {"remote", "one_runs", "one_single", "four_single", "core_each", "busiest"}
        else:
            assert figure.aim < figure.must if figure.less else figure.aim > figure.must, figure.name


def test_rows_are_chosen_by_figure_or_case() -> None:
    assert [figure.name for figure in chosen(["paced"])] == ["paced_p50", "paced_p99"]
    assert [figure.name for figure in chosen(["cold"])] == ["cold"]
    assert chosen(["nothing"]) == []


def test_the_two_sides_alternate_in_going_first() -> None:
    steps = order(measurements(chosen(["one", "paced_p50"])), 2)
    first, second = ([run for number, run in steps if number == n and run.client != "apache-3"] for n in (0, 1))
    assert [run.case for run in first] == sorted((run.case for run in first), key=["one", "paced"].index)
    assert first[0] != second[0]
    assert set(first) == set(second)


def test_protocol_v3_runs_last_and_fills_are_grouped_by_bookies() -> None:
    steps = order([*measurements(FIGURES), *PLOTTED], 2)
    runs = [run for _, run in steps]
    repeated = [run for number, run in steps if number == 1]
    assert [run.client == "apache-3" for run in repeated] == sorted(run.client == "apache-3" for run in repeated)
    kept = [(run.bookies, run.case) for run in runs if run.case in ("fill", "cold")]
    assert kept == [("apache", "fill"), ("apache", "cold"), ("ours", "fill"), ("ours", "cold")]
    assert all(runs.count(run) == 1 for run in PLOTTED)


def test_the_key_of_a_run_parses_back_to_the_run() -> None:
    run = Run("one", "apache-3", "ours")
    assert Run.parse(run.key) == run


def test_a_figure_without_limits_misses_none() -> None:
    slow = {"one:ours>ours": {"per_s": 1}, "one:apache-2>apache": {"per_s": 9}}
    found = outcome(replace(MORE, must=None, aim=None), [slow])
    assert found is not None
    assert found.must_met
    assert found.aim_met
    assert row(found.figure, found)[4:6] == ["-", "-"]
