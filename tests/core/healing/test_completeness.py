"""What keeps anybody from saying that all copies are there, and the names of notes."""

from __future__ import annotations

from buckram.core.healing.absences import note_name, parse_note
from buckram.core.healing.status import shortfalls


def test_each_state_is_told_with_its_count() -> None:
    found = shortfalls({"b1": 12, "b2": None}, {"b3": "slow"}, checked=True, attended=True)
    assert [(one.state, one.where) for one in found] == [("unverified", "b1"), ("unverified", "b2"), ("degraded", "b3")]
    assert "12 ledgers" in found[0].why
    assert found[2].why == "slow"


def test_nothing_is_whole_before_the_first_check() -> None:
    (found,) = shortfalls({}, {}, checked=False, attended=False)
    assert (found.state, found.where) == ("unverified", "cluster")


def test_a_check_that_could_not_tell_of_some_ledgers_leaves_them_unverified() -> None:
    (found,) = shortfalls({}, {}, checked=True, attended=True, untold=2)
    assert (found.state, found.where) == ("unverified", "cluster")
    assert "could not check 2 ledgers" in found.why


def test_names_of_notes() -> None:
    assert parse_note(note_name(7, "host:3181")) == (7, "host:3181")
    assert note_name(7, "b") < note_name(10, "a")
    for name in ("", "7@b", "0000000000000000007", "0000000000000000007@", "x" * 19 + "@b", "9" * 19 + "@b"):
        assert parse_note(name) is None, name


def test_a_check_without_an_auditor_that_watches_says_nothing_of_what_came_after_it() -> None:
    (found,) = shortfalls({}, {}, checked=True, attended=False)
    assert (found.state, found.where) == ("unverified", "cluster")
    assert "no auditor has watched" in found.why
    assert shortfalls({}, {}, checked=True, attended=True) == []
