import random

from hypothesis import given
from hypothesis import strategies as st

from buckram.healing.auditing.periodic_checks import sample


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=8),
    st.floats(0.0, 1.0),
    st.integers(),
)
def test_a_sample_has_as_many_entries_as_were_asked_for_and_each_once(
    steps: list[tuple[int, int]], fraction: float, seed: int
) -> None:
    ranges, at = [], 0
    for gap, length in steps:
        ranges.append((at + gap, at + gap + length))
        at += gap + length + 1
    every = [entry for first, last in ranges for entry in range(first, last + 1)]
    found = sample(ranges, fraction, random.Random(seed))
    assert found == sorted(set(found))
    assert set(found) <= set(every)
    assert len(found) >= max(1, fraction * len(every))
    assert len(found) <= 1 + fraction * len(every)


def test_all_are_read_for_one_and_none_of_nothing() -> None:
    assert sample([(3, 5), (9, 9)], 1.0, random.Random(1)) == [3, 4, 5, 9]
    assert sample([], 0.5, random.Random(1)) == []


def test_a_sample_is_spread_and_another_one_each_time() -> None:
    rng = random.Random(1)
    found = [sample([(0, 999)], 0.01, rng) for _ in range(50)]
    assert all([entry // 100 for entry in one] == list(range(10)) for one in found)
    assert len({entry for one in found for entry in one}) > 300
