"""When a periodic check is due."""

from __future__ import annotations

import pytest

from buckram.core.healing.periodic_checks import due_in_s


@pytest.mark.parametrize(
    ("last_ms", "now_ms", "due_s"),
    [(-1, 5_000, 0.0), (5_000, 5_000, 10.0), (5_000, 9_000, 6.0), (5_000, 15_000, 0.0), (5_000, 99_000, 0.0)],
)
def test_a_check_is_due_an_interval_after_its_last_run(last_ms: int, now_ms: int, due_s: float) -> None:
    assert due_in_s(last_ms, now_ms, 10.0) == due_s


def test_a_date_ahead_of_the_clock_is_not_believed() -> None:
    assert due_in_s(5_001, 5_000, 10.0) == 0.0
