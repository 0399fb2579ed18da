"""Baselines: whether more or less is better, the noise of a figure, and which changes are reported as worse."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.baseline import Known, better, load, machine_kind, save, summary, worse


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ("adds_per_s", 1), ("adds_per_s_at_1000", 1), ("adds_per_s_last", 1), ("entries_per_s", 1), ("p99_ms", -1),
        ("bookie_cpu_us_per_add", -1), ("bookie_cpu_us_at_1000", -1), ("rss_mb", -1), ("seconds", -1),
        ("disk_bytes_per_byte", -1), ("bookie_start_s", -1), ("p99_ms_after", -1), ("rss_mb_at_20", -1),
        ("client_cpu_us_per_record", -1), ("acked", 0), ("foreign_cpu", 0), ("cold_cache", 0), ("mb_per_s", 1),
    ],
)  # fmt: skip
def test_whether_more_or_less_of_a_figure_is_better(figure: str, expected: int) -> None:
    assert better(figure) == expected


def test_noise_is_the_largest_distance_from_the_median() -> None:
    found = summary([{"adds_per_s": 90}, {"adds_per_s": 100}, {"adds_per_s": 105}])
    assert found == {"adds_per_s": Known(100, 0.1)}


def test_a_figure_worse_by_more_than_its_noise_is_reported() -> None:
    known = {"adds_per_s": Known(100, 0.08), "p99_ms": Known(2.0, 0.2)}
    assert worse("one", [{"adds_per_s": 93, "p99_ms": 2.3}], known) == []
    (found,) = worse("one", [{"adds_per_s": 91, "p99_ms": 2.3}], known)
    assert str(found) == "one adds_per_s: 91, was 100: 9% worse, its noise is 8%"
    (found,) = worse("one", [{"adds_per_s": 150, "p99_ms": 2.5}], known)
    assert found.figure == "p99_ms"


def test_the_spread_of_the_current_rounds_counts_as_noise() -> None:
    known = {"adds_per_s": Known(100, 0.0)}
    assert worse("one", [{"adds_per_s": 90}, {"adds_per_s": 90}], known)
    assert not worse("one", [{"adds_per_s": 80}, {"adds_per_s": 90}, {"adds_per_s": 100}], known)


def test_rounds_with_foreign_cpu_are_not_compared() -> None:
    known = {"adds_per_s": Known(100, 0.0)}
    assert worse("one", [{"adds_per_s": 50, "foreign_cpu": 0.4}], known) == []
    assert worse("one", [{"adds_per_s": 50, "foreign_cpu": 0.4}, {"adds_per_s": 60, "foreign_cpu": 0.0}], known)


def test_a_machine_kind_is_named_by_cpu_model_and_count() -> None:
    cpuinfo = "".join(f"processor : {n}\nmodel name\t: Fast(R) CPU @ 2.00GHz\n\n" for n in range(2))
    assert machine_kind(cpuinfo, 2).endswith("-2x-fast-r-cpu-2-00ghz")
    assert machine_kind(cpuinfo, 4) != machine_kind(cpuinfo, 2)
    assert machine_kind("", 1)


def test_saving_a_baseline_keeps_other_cases(tmp_path: Path) -> None:
    save("some", "abc", {"one": {"adds_per_s": Known(1, 0.5)}}, tmp_path)
    save("some", "abd", {"two": {"p99_ms": Known(2, 0.25)}}, tmp_path)
    assert load("some", tmp_path) == {"one": {"adds_per_s": Known(1, 0.5)}, "two": {"p99_ms": Known(2, 0.25)}}
    assert load("other", tmp_path) == {}
