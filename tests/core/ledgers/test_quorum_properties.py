"""Coverage against its definition, and the row form of placement against the single-entry form."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.ledgers.quorum import Quorum

ALL = [(e, w, a) for e in range(1, 8) for w in range(1, e + 1) for a in range(1, w + 1)]


@pytest.mark.parametrize("numbers", ALL, ids=lambda n: "/".join(map(str, n)))
def test_coverage_equals_the_definition(numbers: tuple[int, int, int]) -> None:
    """Covered: no Qa-subset of any write set consists of unknown members only."""
    quorum = Quorum(*numbers)
    size = quorum.ensemble_size
    write_sets = [quorum.write_set(entry) for entry in range(size)]
    for bits in range(2**size):
        known = [p for p in range(size) if bits >> p & 1]
        hidden = any(
            not set(subset) & set(known)
            for write_set in write_sets
            for subset in combinations(write_set, quorum.ack_quorum)
        )
        assert quorum.covered(known) is not hidden
        absent = known
        possible = all(
            any(not set(subset) & set(absent) for subset in combinations(write_set, quorum.ack_quorum))
            for write_set in write_sets
        )
        assert quorum.writable(absent) is possible


@given(st.sampled_from(ALL), st.integers(0, 2**40), st.integers(0, 40), st.data())
def test_held_rows_are_the_ids_of_the_position(
    numbers: tuple[int, int, int], first: int, count: int, data: st.DataObject
) -> None:
    quorum = Quorum(*numbers)
    position = data.draw(st.integers(0, quorum.ensemble_size - 1))
    last = first + count - 1
    rows = list(quorum.held_ranges(position, first, last))
    assert [e for low, high in rows for e in range(low, high + 1)] == [
        e for e in range(first, last + 1) if position in quorum.write_set(e)
    ]
    assert all(b[0] > a[1] + 1 for a, b in pairwise(rows)), "rows must be maximal"
    assert all(quorum.holds(p, first) == (p in quorum.write_set(first)) for p in range(quorum.ensemble_size))
