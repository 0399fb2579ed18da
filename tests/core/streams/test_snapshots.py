"""Snapshots in a machine's head: which are kept, and what of the log they make superfluous."""

from __future__ import annotations

from dataclasses import replace

import pytest

from buckram.core.streams.changes import Step, check_head, truncated
from buckram.core.streams.head import Head, Segment, SnapshotRow, decode_head, encode_head
from buckram.core.streams.snapshots import is_published, published, spared
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
    assert truncated("n/m", head, 15, 100) == Step(replace(head, earliest=10))
    plain = replace(head, snapshots=None)
    assert truncated("n/m", plain, 15, 100) == Step(replace(plain, earliest=15))
    with pytest.raises(InvariantViolation, match="R8"):
        check_head("n/m", replace(head, earliest=11))


def test_snapshots_are_part_of_the_head_and_absent_in_other_streams() -> None:
    for head in (EMPTY, after(10, 20), replace(EMPTY, snapshots=None)):
        assert decode_head("k", encode_head(head)) == head
    assert b"snapshots" not in encode_head(replace(EMPTY, snapshots=None))
