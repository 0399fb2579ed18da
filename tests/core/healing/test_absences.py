"""Which ledgers may lack entries because a bookie was away, by ids and walks only."""

from __future__ import annotations

import pytest

from buckram.core.healing import absences as attendance_module
from buckram.core.healing.absences import Attendance, Unsettled, parse_attendance
from buckram.errors import MalformedRecord

FIRST, SECOND, THIRD = Unsettled(10, (3,)), Unsettled(20, (3, 15)), Unsettled(30, (15,))


def settled() -> Attendance:
    """Two bookies that were there during three walks."""
    known = Attendance()
    known.seen({"b1": "x.1.0", "b2": "y.1.0"})
    for walk in (FIRST, SECOND, THIRD):
        known.walked(walk)
    return known


def test_a_bookie_that_stays_is_verified() -> None:
    known = settled()
    assert not known.seen({"b1": "x.1.0", "b2": "y.1.0"})
    assert not known.unverified


def test_one_that_went_is_held_to_the_walk_before_the_last_one() -> None:
    """A hang is noticed late: what the last walk found closed may have been closed while it hung."""
    known = settled()
    assert known.seen({"b1": "x.1.0"})
    assert known.away == {"b2": SECOND}
    assert not known.unverified  # it is away, and that is told elsewhere
    known.walked(Unsettled(40, ()))
    known.seen({"b1": "x.1.0", "b2": "y.2.0"})
    assert known.to_look_at({"b1": "", "b2": ""}) == {"b2": SECOND}
    assert known.unverified == {"b2": None}


@pytest.mark.parametrize("session", ["y.1.1", "y.2.0"])
def test_another_session_means_that_it_was_away(session: str) -> None:
    known = settled()
    known.seen({"b1": "x.1.0", "b2": session})
    assert known.away == {"b2": SECOND}


def test_one_that_goes_again_is_held_to_the_first_absence() -> None:
    known = settled()
    known.seen({"b1": "x.1.0", "b2": "y.1.1"})
    for walk in (Unsettled(40), Unsettled(50)):
        known.walked(walk)
    known.seen({"b1": "x.1.0", "b2": "y.1.2"})
    assert known.away == {"b2": SECOND}
    assert not known.looked_at("b2", "y.1.1")
    assert known.looked_at("b2", "y.1.2")
    assert not known.unverified


def test_what_could_not_be_told_is_left() -> None:
    known = settled()
    known.seen({"b1": "x.1.1", "b2": "y.1.0"})
    rest = Unsettled(2**63, (15,))
    assert known.looked_at("b1", "x.1.1", rest)
    assert known.away == {"b1": rest}


def test_one_that_tells_no_session_is_believed_by_whoever_watched_it_only() -> None:
    known = Attendance()
    known.seen({"b1": ""})
    known.walked(FIRST)
    known.walked(SECOND)
    assert not known.seen({"b1": ""})
    assert known.seen({"b1": ""}, anew=True)
    assert known.away == {"b1": FIRST}


def test_before_the_second_walk_all_ledgers_are_held_against_one_that_goes() -> None:
    known = Attendance()
    known.seen({"b1": "x.1.0"})
    known.walked(FIRST)
    known.seen({})
    assert known.away == {"b1": Unsettled()}
    assert 0 in known.away["b1"]


def test_one_that_comes_for_the_first_time_may_be_an_old_one() -> None:
    known = settled()
    known.seen({"b1": "x.1.0", "b2": "y.1.0", "b3": "z.7.0"})
    assert known.away == {"b3": SECOND}
    known.forget(["b1", "b2"])
    assert not known.away


def test_too_many_open_ledgers_make_more_of_them_unsettled_never_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance_module, "MOST_OPEN", 2)
    found = Unsettled.of(100, [1, 5, 9, 50])
    assert found == Unsettled(9, (1, 5))
    assert all(ledger in found for ledger in (1, 5, 9, 50, 100))
    assert 6 not in found


def test_the_record_is_read_as_it_was_written() -> None:
    known = settled()
    known.seen({"b1": "x.1.1"})
    known.left["b1"] = 7
    assert parse_attendance("key", known.encode()) == known
    assert parse_attendance("key", Attendance().encode()) == Attendance()
    with pytest.raises(MalformedRecord, match="key: not who was away"):
        parse_attendance("key", b"{}")
