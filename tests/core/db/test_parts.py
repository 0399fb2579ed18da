"""Groups in parts: joined in order, dropped where anything else follows."""

from __future__ import annotations

import os

import pytest

from buckram.core.db.group import PART, Joiner, cut, kind_of
from buckram.errors import UnknownCommand

_PAYLOAD = b"\1\1" + os.urandom(10_000)


def _joined(joiner: Joiner, parts: list[bytes]) -> bytes | None:
    found = [joiner.joined(part) for part in parts]
    assert found[:-1] == [None] * (len(parts) - 1)
    return found[-1]


def test_a_group_in_parts_is_joined() -> None:
    assert list(cut(_PAYLOAD, 1, 2, 20_000)) == [_PAYLOAD]
    parts = list(cut(_PAYLOAD, 1, 2, 1000))
    assert all(kind_of(part) == PART and len(part) <= 1000 for part in parts)
    assert _joined(Joiner(), parts) == _PAYLOAD


def test_parts_are_state_that_a_snapshot_carries() -> None:
    parts = list(cut(_PAYLOAD, 1, 2, 1000))
    joiner = Joiner()
    for part in parts[:5]:
        joiner.joined(part)
    assert _joined(Joiner(list(joiner.held)), parts[5:]) == _PAYLOAD


def test_parts_of_a_lost_leader_are_dropped() -> None:
    lost, parts = list(cut(_PAYLOAD, 1, 2, 1000)), list(cut(_PAYLOAD[:5000], 9, 2, 1000))
    joiner = Joiner()
    for part in lost[:3]:
        joiner.joined(part)
    assert _joined(joiner, parts) == _PAYLOAD[:5000]
    assert joiner.joined(lost[3]) is None
    joiner.joined(lost[0])
    joiner.drop()
    assert joiner.joined(lost[1]) is None
    assert joiner.held == []
    for part in lost[:2]:
        joiner.joined(part)
    assert joiner.joined(parts[2]) is None
    assert joiner.held == []


def test_a_cut_part_is_refused() -> None:
    with pytest.raises(UnknownCommand):
        Joiner().joined(b"\1\2abc")
