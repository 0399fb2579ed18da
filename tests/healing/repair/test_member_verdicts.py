"""A writer that is at work, or may be, is never taken for dead."""

from buckram.healing.repair.member_verdicts import Stillness


def test_time_counts_from_the_first_look_that_said_the_same() -> None:
    seen = Stillness()
    assert seen.look(7, b"x", {"a": b"1", "b": b"1"}, 100.0) == 0.0
    assert seen.look(7, b"x", {"a": b"1", "b": b"1"}, 105.0) == 5.0
    assert seen.look(7, b"x", {"a": b"1"}, 110.0) == 10.0, "b is away, which says nothing"


def test_any_member_that_moved_begins_the_time_anew() -> None:
    seen = Stillness()
    seen.look(7, b"x", {"a": b"1", "b": b"1"}, 100.0)
    assert seen.look(7, b"x", {"a": b"1", "b": b"2"}, 105.0) == 0.0
    assert seen.look(7, b"x", {"a": b"1", "b": b"2"}, 106.0) == 1.0
    seen.look(7, b"x", {"a": b"1"}, 107.0)
    assert seen.look(7, b"x", {"b": b"3"}, 108.0) == 0.0, "b moved while it was away"


def test_a_member_that_was_not_heard_before_may_know_more() -> None:
    seen = Stillness()
    seen.look(7, b"x", {"a": b"1"}, 100.0)
    assert seen.look(7, b"x", {"a": b"1", "b": b"1"}, 200.0) == 0.0


def test_nobody_who_answers_is_no_evidence() -> None:
    seen = Stillness()
    seen.look(7, b"x", {"a": b"1"}, 100.0)
    assert seen.look(7, b"x", {}, 200.0) == 0.0
    assert seen.look(7, b"x", {"a": b"1"}, 201.0) == 0.0


def test_another_ledger_of_that_id_is_looked_at_by_itself() -> None:
    seen = Stillness()
    seen.look(7, b"x", {"a": b"1"}, 100.0)
    assert seen.look(7, b"y", {"a": b"1"}, 200.0) == 0.0
    seen.forget(7)
    assert seen.look(7, b"x", {"a": b"1"}, 300.0) == 0.0
