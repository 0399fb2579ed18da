"""Reasons survive their record, and ids become rows."""

import pytest

from buckram.core.healing.status import Reason, WaitingLedger, Why, add_to_rows, named_rows, parse_waiting
from buckram.errors import MalformedRecord


def test_a_waiting_ledger_reads_back_as_it_was_written() -> None:
    reasons = (
        Reason(Why.NO_GOOD_COPY, "entries 17 to 19 have no good copy", ((17, 19),)),
        Reason(Why.NO_BOOKIE, "start one more bookie"),
    )
    waiting = WaitingLedger(7, reasons, 1, "b1", 5)
    assert parse_waiting("key", 7, waiting.encode()) == waiting
    assert waiting.lost == ((17, 19),)


def test_reasons_of_later_releases_are_shown_as_they_are() -> None:
    value = WaitingLedger(7, (Reason(Why.OTHER, "because"),), 1, "b1", 5).encode().replace(b'"other"', b'"moonlight"')
    assert parse_waiting("key", 7, value).reasons == (Reason(Why.OTHER, "because"),)


@pytest.mark.parametrize("value", [b"", b"{}", b'{"reasons": 5}', b"\xff"])
def test_what_is_no_such_record_is_named(value: bytes) -> None:
    with pytest.raises(MalformedRecord, match="/some/key"):
        parse_waiting("/some/key", 7, value)


def test_ids_become_rows() -> None:
    rows: list[tuple[int, int]] = []
    for entry in (3, 4, 5, 9):
        add_to_rows(rows, entry)
    assert rows == [(3, 5), (9, 9)]
    assert named_rows(((3, 5), (9, 9))) == "3 to 5, 9"
    assert named_rows(((1, 1), (3, 3), (5, 8)), most=2) == "1, 3 and 4 more"
