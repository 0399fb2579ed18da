"""Spans of bad entries: what they hide, against a plain set of ids."""

from __future__ import annotations

import itertools
import random

from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.segments.bad_entries import BadEntries, union, without


def ids(spans: object) -> set[int]:
    return {entry for first, end in spans for entry in range(first, end)}  # type: ignore[attr-defined]


def drawn(rng: random.Random) -> list[tuple[int, int]]:
    return [(first, first + rng.randrange(0, 6)) for first in (rng.randrange(40) for _ in range(rng.randrange(6)))]


def test_spans_behave_like_sets_of_ids() -> None:
    rng = random.Random(7)
    for _ in range(2000):
        some, others = drawn(rng), drawn(rng)
        joined = union(some)
        assert ids(joined) == ids(some)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(joined))
        assert ids(without(some, union(others))) == ids(some) - ids(others)


def test_meeting_and_masking_agree_with_the_set_of_bad_ids() -> None:
    rng = random.Random(8)
    for _ in range(2000):
        bad = BadEntries()
        spans = drawn(rng)
        bad.add(5, spans)
        first, count = rng.randrange(45), rng.randrange(1, 8)
        hit = ids(spans) & set(range(first, first + count))
        assert bad.meets(5, first, count) == bool(hit)
        assert not bad.meets(6, first, count)
        outcomes = bad.masked([b"x"] * count, 5, first)
        assert {first + i for i, one in enumerate(outcomes) if isinstance(one, StoreError)} == hit
        assert bad.entries == len(ids(spans))


def test_what_is_replaced_by_nothing_is_forgotten() -> None:
    bad = BadEntries()
    bad.add(1, [(0, 4)])
    bad.add(1, [(2, 8)])
    assert list(bad.of(1)) == [(0, 8)]
    bad.replace(1, [])
    assert not bad
    assert bad.spans == bad.entries == 0
