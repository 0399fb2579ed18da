"""Deficit round robin: tenants that wait get the same bytes, however large what they want is."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from buckram.core.tenants.pacing import QUANTUM, Turns

SIZES = st.integers(1, 3 * QUANTUM)


class Lines:
    def __init__(self, sizes: dict[str, list[int]]) -> None:
        self.waiting = {tenant: deque(found) for tenant, found in sizes.items()}
        self.taken = dict.fromkeys(sizes, 0)

    def next_size(self, tenant: str) -> int | None:
        return self.waiting[tenant][0] if self.waiting[tenant] else None

    def take(self, tenant: str) -> None:
        self.taken[tenant] += self.waiting[tenant].popleft()


class Endless(Lines):
    """Whatever was taken is wanted again."""

    def take(self, tenant: str) -> None:
        self.waiting[tenant].append(self.waiting[tenant][0])
        super().take(tenant)


@settings(max_examples=20)
@given(
    st.dictionaries(
        st.sampled_from("abcde"), st.lists(st.integers(1024, 3 * QUANTUM), min_size=1, max_size=8), min_size=2
    )
)
def test_those_that_always_want_something_get_the_same(sizes: dict[str, list[int]]) -> None:
    lines, turns = Endless(sizes), Turns[str]()
    for tenant in sizes:
        turns.wait(tenant)
    for _ in range(20):
        turns.serve(QUANTUM, lines.next_size, lines.take)
    assert max(lines.taken.values()) - min(lines.taken.values()) <= 5 * QUANTUM


@settings(max_examples=20)
@given(st.dictionaries(st.sampled_from("abc"), st.lists(SIZES, min_size=1, max_size=20), min_size=1))
def test_everything_is_served_and_nobody_is_left(sizes: dict[str, list[int]]) -> None:
    lines, turns = Lines(sizes), Turns[str]()
    for tenant in sizes:
        turns.wait(tenant)
    for _ in range(1000):
        if not turns:
            break
        turns.serve(QUANTUM, lines.next_size, lines.take)
    assert not turns
    assert lines.taken == {tenant: sum(found) for tenant, found in sizes.items()}


def test_something_is_served_however_little_room_there_is() -> None:
    lines, turns = Lines({"a": [10 * QUANTUM]}), Turns[str]()
    turns.wait("a")
    turns.serve(1, lines.next_size, lines.take)
    assert lines.taken == {"a": 10 * QUANTUM}
