"""What is repeated is counted instead of written."""

from __future__ import annotations

from buckram.runtime.logs.line_format import MOST_KINDS, WINDOW_S, Repeats


def test_the_first_lines_of_a_minute_pass_and_the_others_are_counted() -> None:
    repeats: Repeats[str] = Repeats(3)
    assert [repeats.passes("a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert repeats.passes("b", 1.0), "another kind is not held back"
    assert repeats.ended(WINDOW_S - 0.1) == []
    assert repeats.ended(WINDOW_S) == [("a", 2)]
    assert repeats.passes("a", WINDOW_S)


def test_what_was_left_out_is_said_once() -> None:
    repeats: Repeats[str] = Repeats(1)
    for _ in range(3):
        repeats.passes("a", 0.0)
    assert repeats.rest() == [("a", 2)]
    assert repeats.rest() == repeats.ended(1e9) == []


def test_kinds_are_bounded() -> None:
    repeats: Repeats[int] = Repeats(1)
    said = []
    for kind in range(3 * MOST_KINDS):
        said += repeats.ended(0.0)
        repeats.passes(kind, 0.0)
        repeats.passes(kind, 0.0)
    assert len(said) == 2 * MOST_KINDS
    assert len(repeats.rest()) == MOST_KINDS


def test_without_a_limit_all_pass() -> None:
    repeats: Repeats[str] = Repeats(0)
    assert all(repeats.passes("a", 0.0) for _ in range(10_000))
