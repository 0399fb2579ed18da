"""Snapshots in a machine's head: which are kept, and what of the log they make superfluous."""

from __future__ import annotations

from dataclasses import replace

import pytest

from buckram.core.streams.metadata.changes import HeadStep, check_head, check_step, rolled, truncated
from buckram.core.streams.metadata.head import Head, Segment, SnapshotRow, Summary, decode_head, encode_head
from buckram.core.streams.metadata.snapshots import is_published, leapt, published, spared
from buckram.core.streams.records.positions import PositionMark
from buckram.core.streams.records.record_format import NO_TXID
from buckram.errors import InvariantViolation

EMPTY = Head("uid", 0, tail=(Segment(0, 1, 0, 0),), next_number=1, snapshots=())


def row(offset: int, ledger: int = 0) -> SnapshotRow:
    return SnapshotRow(offset, ledger or offset, 3, 100, "ab", 7)


def after(*offsets: int, keep: int = 2) -> Head:
    head = EMPTY
    for offset in offsets:
        found = published("n/m", head, row(offset), keep)
        assert found is not None
        check_head("n/m", found)
        head = found
    return head


def test_the_log_is_kept_until_there_are_as_many_snapshots_as_are_kept() -> None:
    assert after(10).earliest == 0
    assert after(10, 20).earliest == 10
    head = after(10, 20, 30)
    assert head.earliest == 20
    assert head.snapshots == (row(20), row(30))
    assert is_published(head, 30)
    assert not is_published(head, 10)
    assert after(10, 20, 30, keep=5).earliest == 0


def test_publishing_again_changes_nothing_and_going_back_is_a_violation() -> None:
    head = after(10, 20)
    assert published("n/m", head, row(20), 2) is None
    for offset in (20, 15):
        with pytest.raises(InvariantViolation, match="R7"):
            published("n/m", head, row(offset, 99), 2)
    with pytest.raises(InvariantViolation, match="R7"):
        published("n/m", replace(EMPTY, snapshots=None), row(10), 2)


def test_truncation_stops_at_what_a_snapshot_needs() -> None:
    assert truncated("n/m", after(10), 5, 100) is None
    head = after(10, 20, keep=3)
    assert spared(head) == 10
    assert truncated("n/m", head, 15, 100) == HeadStep(replace(head, earliest=10))
    plain = replace(head, snapshots=None)
    assert truncated("n/m", plain, 15, 100) == HeadStep(replace(plain, earliest=15))
    with pytest.raises(InvariantViolation, match="R8"):
        check_head("n/m", replace(head, earliest=11))


def test_a_mirror_goes_on_at_a_snapshot_beyond_its_end_with_a_gap_below() -> None:
    summary = Summary(5, 4, 50, 1, 2, 1, 2, NO_TXID, -1)
    head = replace(EMPTY, tail=(Segment(0, 1, 0, 0, summary),), end=5)
    assert leapt("n/m", head, row(5), PositionMark(5, 2, "d", 1, "")) is None
    mark = PositionMark(9, 77, "d", 1, "")
    gone_on = leapt("n/m", head, row(9), mark)
    assert gone_on is not None
    assert (gone_on.earliest, gone_on.end, gone_on.snapshots) == (9, 9, (row(9),))
    assert (gone_on.mark, gone_on.last_append) == (mark, 77), "its position is found by nothing else from now on"
    check_step("n/m", head, gone_on)
    step = rolled("n/m", gone_on, gone_on.epoch, None, 7, 9, 0)
    assert step is not None
    check_step("n/m", gone_on, step.head)
    with pytest.raises(InvariantViolation, match="M9"):
        check_head("n/m", replace(step.head, earliest=8))
    with pytest.raises(InvariantViolation, match="R7"):
        leapt("n/m", EMPTY, row(9), mark)
    with pytest.raises(InvariantViolation, match="R7"):
        leapt("n/m", head, row(9), mark._replace(offset=8))


def test_snapshots_are_part_of_the_head_and_absent_in_other_streams() -> None:
    for head in (EMPTY, after(10, 20), replace(EMPTY, snapshots=None)):
        assert decode_head("k", encode_head(head)) == head
    assert b"snapshots" not in encode_head(replace(EMPTY, snapshots=None))
