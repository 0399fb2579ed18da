"""The list-of-entries encoding: periods, limits, bad bytes. The vectors are in test_wire_vectors."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.wire.availability import BadAvailability, EntryList, encode_runs


def groups(*rows: tuple[int, int, int, int], version: int = 0, count: int | None = None) -> bytes:
    head = struct.pack(">ii56x", version, len(rows) if count is None else count)
    return head + b"".join(struct.pack(">qqii", *row) for row in rows)


def test_a_period_is_read() -> None:
    found = EntryList.decode(groups((10, 22, 2, 4), (100, 100, 3, 0)))
    assert [e for e in range(110) if e in found] == [10, 11, 14, 15, 18, 19, 22, 23, 100, 101, 102]
    assert list(found.runs()) == [(10, 2), (14, 2), (18, 2), (22, 2), (100, 3)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 63,
        groups((0, 0, 1, 0), version=1),
        groups((0, 0, 1, 0), count=2),
        groups(count=-1),
        groups((5, 5, 1, 0), (5, 5, 1, 0)),
        groups((5, 5, 1, 0), (4, 4, 1, 0)),
        groups((0, 0, 0, 0)),
        groups((0, 4, 1, 0)),
        groups((4, 0, 1, 2)),
        groups((-1, -1, 1, 0)),
        groups((0, 4, 1, -2)),
    ],
)
def test_bad_lists_are_refused(data: bytes) -> None:
    with pytest.raises(BadAvailability):
        EntryList.decode(data)


@given(st.sets(st.integers(0, 400)))
def test_any_set_comes_back(entries: set[int]) -> None:
    found = EntryList.decode(encode_runs([(entry, 1) for entry in sorted(entries)]))
    assert {e for e in range(402) if e in found} == entries
    assert [first + j for first, count in found.runs() for j in range(count)] == sorted(entries)
    assert all(group.period == 0 for group in found.groups)
    assert len(found.groups) == sum(1 for e in entries if e - 1 not in entries)


@given(st.sets(st.integers(0, 40)), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=6))
def test_ranges_are_covered_when_every_entry_of_them_is_listed(held: set[int], asked: list[tuple[int, int]]) -> None:
    listed = EntryList.decode(encode_runs([(entry, 1) for entry in sorted(held)]))
    ranges, floor = [], 0
    for gap, length in asked:
        ranges.append((floor + gap % 7, floor + gap % 7 + length))
        floor = ranges[-1][1] + 1
    wanted = {entry for first, last in ranges for entry in range(first, last + 1)}
    assert listed.covers(ranges) is (wanted <= held)
