"""Sets of deleted ids as bytes: exact, canonical, bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.ledgers.deletions import BUCKET, MOST_BYTES, Deleted, bucket_of, decode_deleted, deletions_key
from buckram.errors import MalformedRecord

KEY = deletions_key("/buckram", 7)
runs = st.lists(st.tuples(st.integers(0, BUCKET - 1), st.integers(1, 400)), max_size=30)


def ids_of(found: list[tuple[int, int]]) -> set[int]:
    return {place for first, count in found for place in range(first, min(first + count, BUCKET))}


@given(runs)
def test_what_was_put_in_is_in_it_and_nothing_else(found: list[tuple[int, int]]) -> None:
    ids = ids_of(found)
    kept = decode_deleted(KEY, Deleted().and_these(sorted(ids)).encode())
    assert len(kept) == len(ids)
    assert {place for first, last in kept.intervals() for place in range(first, last + 1)} == ids
    borders = {one + step for one in ids for step in (-1, 0, 1) if 0 <= one + step < BUCKET}
    assert all((7 * BUCKET + one in kept) == (one in ids) for one in borders)


@given(st.sets(st.integers(0, BUCKET - 1), max_size=200), st.sets(st.integers(0, BUCKET - 1), max_size=200))
def test_a_set_has_one_encoding_however_it_came_about(one: set[int], two: set[int]) -> None:
    together = Deleted().and_these(one | two)
    apart = decode_deleted(KEY, Deleted().and_these(one).encode()).and_these(two)
    assert apart == together
    assert apart.encode() == together.encode()
    assert len(together.encode()) <= MOST_BYTES


@given(st.binary(max_size=40))
def test_bytes_are_a_set_in_its_own_encoding_or_an_error(value: bytes) -> None:
    try:
        found = decode_deleted(KEY, value)
    except MalformedRecord:
        return
    assert found.encode() == value


@pytest.mark.parametrize("place", [0, 1, 127, 128, BUCKET // 2, BUCKET - 2, BUCKET - 1])
def test_one_id_at_an_edge(place: int) -> None:
    kept = decode_deleted(KEY, Deleted().and_these([7 * BUCKET + place]).encode())
    assert kept.intervals() == [(place, place)]
    assert [one for one in range(7 * BUCKET, 8 * BUCKET) if one in kept] == [7 * BUCKET + place]


def test_the_neighbours_of_a_bucket_are_in_the_next_ones() -> None:
    assert [bucket_of(one) for one in (0, BUCKET - 1, BUCKET, 8 * BUCKET - 1, 8 * BUCKET)] == [0, 0, 1, 7, 8]


def test_what_a_bucket_takes() -> None:
    """The figures of docs/reference/metadata.md."""
    everything = Deleted().and_these(range(BUCKET))
    every_tenth_lives = Deleted().and_these(one for one in range(BUCKET) if one % 10)
    every_second = Deleted().and_these(range(1, BUCKET, 2))
    assert len(everything.encode()) == 4
    assert len(every_tenth_lives.encode()) == len(every_second.encode()) == MOST_BYTES == 2049
    assert everything.and_these(range(BUCKET)) == everything
    keys = -(-100_000_000 // BUCKET)
    assert keys == 6104
    assert keys * len(everything.encode()) == 24_416
    assert keys * len(every_tenth_lives.encode()) == 12_507_096


@pytest.mark.parametrize(
    "value",
    [
        b"\x00",
        b"\x03\x00\x00",
        b"\x01",
        b"\x01\x00",
        b"\x01\x05\x00\x00\x00",  # two runs that touch
        b"\x01\x80\x00\x00",  # a number that is longer than it must be
        b"\x01\xff\x7f\x01",  # beyond the bucket by one
        b"\x01\xff\xff\xff\xff\x00",
        b"\x02\x01\x00",
        b"\x02\xff\xff",  # no shorter than as an interval
        b"\x02" + b"\xaa" * (MOST_BYTES + 5),
    ],
)
def test_what_nobody_writes_deletes_nothing(value: bytes) -> None:
    with pytest.raises(MalformedRecord, match="/buckram/deleted/000000000000007"):
        decode_deleted(KEY, value)
