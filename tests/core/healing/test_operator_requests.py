"""What operators ask of bookies, as records, and maintenances that are counted down by any number of processes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.healing.operator_requests import NOTHING, RENEW_S, Countdown, OperatorRequest, parse_wish
from buckram.errors import MalformedRecord

REST = OperatorRequest(rest="one", rest_s=60.0)


@given(st.builds(OperatorRequest, st.booleans(), st.booleans(), st.text(), st.integers(0, 2**60), st.booleans()))
def test_a_wish_is_read_as_it_was_written(wish: OperatorRequest) -> None:
    assert parse_wish("k", wish.encode()) == wish


def test_what_a_later_release_added_is_left_out() -> None:
    assert parse_wish("k", b'{"readonly": true, "sing": 1}') == OperatorRequest(readonly=True)


@pytest.mark.parametrize("value", [b"", b"[]", b"7", b'{"leave": 1}', b'{"rate": true}', b'{"rest_s": "1"}', b"\xff"])
def test_what_is_no_wish_is_named_with_its_key(value: bytes) -> None:
    with pytest.raises(MalformedRecord, match=r"wishes/b1.*delete it"):
        parse_wish("wishes/b1", value)


def test_what_weighs_most_is_shown() -> None:
    assert NOTHING.asked == ""
    assert replace(REST, readonly=True).asked == "maintenance"
    assert replace(REST, leave=True).asked == "drain"
    assert OperatorRequest(readonly=True).asked == "readonly"


def test_a_maintenance_ends_by_itself() -> None:
    found = Countdown()
    found.seen({"b1": REST}, 100.0)
    assert found.resting(159.0) == {"b1"}
    assert found.left_s("b1", 159.0) == 1.0
    assert found.resting(160.0) == frozenset()
    assert found.changed("b1", REST, 160.0) == NOTHING


def test_what_is_left_is_written_down_now_and_then() -> None:
    found = Countdown()
    found.seen({"b1": REST}, 100.0)
    assert found.next_at({"b1": REST}, 100.0) == 100.0 + RENEW_S
    assert found.changed("b1", REST, 100.0 + RENEW_S - 1) is None
    written = found.changed("b1", REST, 100.0 + RENEW_S)
    assert written == replace(REST, rest_s=60.0 - RENEW_S)
    assert written is not None
    found.seen({"b1": written}, 100.0 + RENEW_S)
    assert found.next_at({"b1": written}, 100.0 + RENEW_S) == 100.0 + 2 * RENEW_S


def test_a_process_that_takes_over_goes_on_from_what_was_written() -> None:
    first, second = Countdown(), Countdown()
    first.seen({"b1": REST}, 0.0)
    written = first.changed("b1", REST, 50.0)
    assert written is not None
    second.seen({"b1": written}, 9000.0)  # another machine, another clock
    assert second.resting(9009.0) == {"b1"}
    assert second.resting(9010.0) == frozenset()


def test_an_older_record_makes_no_maintenance_longer() -> None:
    found = Countdown()
    found.seen({"b1": REST}, 0.0)
    found.seen({"b1": REST}, 50.0)
    assert found.resting(60.0) == frozenset()


def test_another_maintenance_counts_anew_and_one_that_is_taken_back_is_over() -> None:
    found = Countdown()
    found.seen({"b1": REST}, 0.0)
    found.seen({"b1": replace(REST, rest="two")}, 50.0)
    assert found.resting(109.0) == {"b1"}
    assert found.changed("b1", REST, 200.0) is None, "the record is of another maintenance"
    found.seen({}, 51.0)
    assert found.resting(51.0) == frozenset()
    assert found.next_at({}, 51.0) is None


def test_records_are_json_that_people_can_read() -> None:
    assert json.loads(OperatorRequest(leave=True, target="b2").encode())["target"] == "b2"
