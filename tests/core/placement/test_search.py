"""The search finds an ensemble whenever there is one; by brute force."""

from collections.abc import Sequence
from itertools import permutations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.soak import soak

from buckram.core.placement.search import Place, Search

places = st.tuples(st.sampled_from("rs"), st.sampled_from("klmn"))
"""A rack and a host, which may span racks: then it is one domain all the same."""


def meets(where: Sequence[Place | None], width: int, needs: Sequence[int], touched: Sequence[int]) -> bool:
    size = len(where)
    for start in {(seat - back) % size for seat in touched for back in range(width)}:
        window = [where[(start + step) % size] for step in range(width)]
        for level, needed in enumerate(needs):
            if len({place[level] for place in window if place is not None}) < needed:
                return False
    return True


@settings(max_examples=soak(300, 100), deadline=None)
@given(
    st.lists(places, min_size=2, max_size=6),
    st.lists(st.none() | places, min_size=2, max_size=5),
    st.integers(1, 4),
    st.integers(1, 2),
    st.integers(1, 4),
)
@example(
    [("s", "l"), ("r", "m"), ("r", "l"), ("s", "k")], [None, ("r", "m"), ("s", "m"), None], 2, 2, 2
)  # what fails with one place does not with the next
def test_it_finds_one_whenever_there_is_one(
    free: list[Place], fixed: list[Place | None], width: int, racks: int, hosts: int
) -> None:
    width = min(width, len(fixed))
    needs = [min(racks, width), min(hosts, width)]
    seats = [seat for seat, place in enumerate(fixed) if place is None]
    pool = [(f"b{number}", place) for number, place in enumerate(free)]
    where_of = dict(pool)

    def filled(members: Sequence[str]) -> list[Place | None]:
        after = list(fixed)
        for seat, member in zip(seats, members, strict=True):
            after[seat] = where_of[member]
        return after

    possible = [order for order in permutations(where_of, len(seats)) if meets(filled(order), width, needs, seats)]
    found = Search(pool, fixed, width, needs).fill(seats)
    assert (found is not None) == bool(possible)
    if found is not None:
        assert tuple(found[seat] for seat in seats) in possible
