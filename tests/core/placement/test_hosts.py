"""Copies are spread over hosts by default: as many as there are, never a reason to refuse (M6). By brute force."""

import random
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.choose import (
    Candidate,
    attainable,
    choose_ensemble,
    choose_with_absent,
    fewest_moves,
    replace_members,
)
from buckram.core.placement.explain import placement_states, shortages
from buckram.core.placement.judge import badness, breaches
from buckram.core.placement.policy import PlacementPolicy
from buckram.core.placement.topology import Topology
from buckram.errors import NotEnoughBookies

DEFAULT = PlacementPolicy.parse("rack:2")
hosts = st.lists(st.integers(0, 3), min_size=1, max_size=6)
"""Of each bookie the number of its host."""


def topology(where: Sequence[int]) -> Topology:
    return Topology.of({f"b{n}": f"/host=h{host}" for n, host in enumerate(where)})


def fewest_hosts(ensemble: Sequence[str], where: Sequence[int], write_quorum: int) -> int:
    """Of the write quorum that is on the fewest hosts, on how many it is; decided without the code under test."""
    of = [where[int(member[1:])] for member in ensemble]
    size = len(of)
    return min(len({of[(start + step) % size] for step in range(write_quorum)}) for start in range(size))


def best(where: Sequence[int], size: int, write_quorum: int) -> int:
    names = [f"b{n}" for n in range(len(where))]
    return max(fewest_hosts(order, where, write_quorum) for order in permutations(names, size))


@settings(max_examples=120, deadline=None)
@given(hosts, st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32))
def test_the_write_quorum_on_the_fewest_hosts_is_on_as_many_as_can_be(
    where: list[int], size: int, write_quorum: int, seed: int
) -> None:
    size = min(size, len(where))
    write_quorum = min(size, write_quorum)
    quorum, there = Quorum(size, write_quorum, 1), topology(where)
    candidates = [Candidate(f"b{n}") for n in range(len(where))]
    got = choose_ensemble(candidates, quorum, random.Random(seed), topology=there, policy=DEFAULT)
    found, most = fewest_hosts(got.members, where, write_quorum), best(where, size, write_quorum)
    assert found == most
    assert attainable(candidates, quorum, DEFAULT, there)["host"] == most
    several = len(set(where)) > 1
    assert bool(got.short) == (several and found < write_quorum), "it is said, and one host alone is silent"
    assert not breaches(got.members, quorum, DEFAULT, there, {"host": most}), "nobody is told to move what is best"
    if len(set(where)) >= (write_quorum if size == write_quorum else size):
        assert found == write_quorum


@settings(max_examples=80, deadline=None)
@given(hosts, st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_replacement_goes_where_the_write_quorums_are_on_most_hosts(
    where: list[int], size: int, write_quorum: int, data: st.DataObject
) -> None:
    size = min(size, len(where))
    write_quorum = min(size, write_quorum)
    names = [f"b{n}" for n in range(len(where))]
    ensemble = data.draw(st.permutations(names))[:size]
    seat, seed = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 2**32))
    candidates = [Candidate(name) for name in names]
    got = replace_members(
        candidates, ensemble, [seat], write_quorum, random.Random(seed), topology=topology(where), policy=DEFAULT
    )
    spare = [name for name in names if name not in ensemble]
    assert len(got) == min(1, len(spare))

    def touched(bookie: str) -> int:
        """Of the write quorums with the seat the one on the fewest hosts."""
        of = [where[int(name[1:])] for name in (bookie if at == seat else name for at, name in enumerate(ensemble))]
        starts = range(seat - write_quorum + 1, seat + 1)
        return min(len({of[(start + step) % size] for step in range(write_quorum)}) for start in starts)

    if got:
        assert touched(got[seat]) == max(map(touched, spare))


@settings(max_examples=80, deadline=None)
@given(hosts, st.integers(2, 4), st.data())
def test_ledgers_whose_write_quorum_is_the_ensemble_are_moved_to_as_many_hosts_as_there_are(
    where: list[int], size: int, data: st.DataObject
) -> None:
    size = min(size, len(where))
    names = [f"b{n}" for n in range(len(where))]
    ensemble, seed = data.draw(st.permutations(names))[:size], data.draw(st.integers(0, 2**32))
    quorum, there, candidates = Quorum(size, size, 1), topology(where), [Candidate(name) for name in names]
    limits = attainable(candidates, quorum, DEFAULT, there)
    named = bool(breaches(ensemble, quorum, DEFAULT, there, limits))
    assert named == (fewest_hosts(ensemble, where, size) < best(where, size, size)), "what can be better is named"
    moves = fewest_moves(candidates, ensemble, quorum, random.Random(seed), topology=there, policy=DEFAULT)
    assert moves is not None, "and the command that is named with it moves it"
    after = [moves.get(seat, member) for seat, member in enumerate(ensemble)]
    assert fewest_hosts(after, where, size) == best(where, size, size)
    assert len(moves) == best(where, size, size) - fewest_hosts(ensemble, where, size), "and no more than needed"


def test_as_the_documents_recommend_it_no_ledger_has_two_copies_on_one_host() -> None:
    """Two bookies on one machine and one on each of two others; three on each of three."""
    for where in ([0, 0, 1, 2], [n // 3 for n in range(9)]):
        candidates = [Candidate(f"b{n}") for n in range(len(where))]
        rng = random.Random(3)
        for _ in range(200):
            chosen = choose_ensemble(candidates, Quorum(3, 3, 2), rng, topology=topology(where), policy=DEFAULT)
            assert len({where[int(member[1:])] for member in chosen.members}) == 3
            assert not chosen.short


def test_racks_stand_above_hosts() -> None:
    """Two racks before three hosts where both cannot be; both where they can."""
    there = Topology.of(
        {"a": "/rack=r1/host=h1", "b": "/rack=r1/host=h2", "c": "/rack=r1/host=h3", "d": "/rack=r2/host=h3"}
    )
    for seed in range(20):
        chosen = choose_ensemble(
            [Candidate(b) for b in "acd"], Quorum(3, 3, 2), random.Random(seed), topology=there, policy=DEFAULT
        )
        assert "d" in chosen.members
        chosen = choose_ensemble(
            [Candidate(b) for b in "abcd"], Quorum(3, 3, 2), random.Random(seed), topology=there, policy=DEFAULT
        )
        assert set(chosen.members) == {"a", "b", "d"}


def test_host_1_takes_the_rule_back() -> None:
    where = [0, 0, 0, 1, 2]
    policy, candidates = PlacementPolicy.parse("rack:2 host:1"), [Candidate(f"b{n}") for n in range(5)]
    seen = {
        frozenset(
            choose_ensemble(
                candidates, Quorum(3, 3, 2), random.Random(seed), topology=topology(where), policy=policy
            ).members
        )
        for seed in range(100)
    }
    assert frozenset({"b0", "b1", "b2"}) in seen


def test_an_enforced_rule_of_hosts_refuses() -> None:
    policy = PlacementPolicy.parse("host:all enforce")
    with pytest.raises(NotEnoughBookies, match=r"level host.*in 3 of them.*3 in h0, 1 in h1"):
        choose_ensemble(
            [Candidate(f"b{n}") for n in range(4)],
            Quorum(3, 3, 2),
            random.Random(0),
            topology=topology([0, 0, 0, 1]),
            policy=policy,
        )


def test_where_racks_cannot_be_mended_hosts_are() -> None:
    there = Topology.of({b: f"/rack=r1/host={h}" for b, h in zip("abcd", ("h1", "h1", "h2", "h3"), strict=True)})
    candidates, quorum = [Candidate(b) for b in "abcd"], Quorum(3, 3, 2)
    moves = fewest_moves(candidates, ["a", "b", "c"], quorum, random.Random(0), topology=there, policy=DEFAULT)
    assert moves in ({0: "d"}, {1: "d"})
    assert fewest_moves(candidates, ["a", "c", "d"], quorum, random.Random(0), topology=there, policy=DEFAULT) is None


def test_a_member_of_which_nobody_knows_where_it_was_breaks_no_rule_of_hosts() -> None:
    there, quorum = topology([0, 1, 2]), Quorum(3, 3, 2)
    assert badness(["b0", "b1", "gone"], quorum, DEFAULT, there) == (0, 0, 0)
    assert badness(["b0", "gone", "lost"], quorum, DEFAULT, there) == (0, 0, 0)
    pair = Topology({**there.locations, "b3": there.location("b0")})
    assert badness(["b0", "b3", "gone"], quorum, DEFAULT, pair) == (0, 0, 1)


def test_a_member_that_is_away_counts_for_its_host() -> None:
    where, candidates = [0, 1, 1, 2], [Candidate("b0"), Candidate("b3")]
    chosen = choose_with_absent(
        candidates, ["b1", "b2"], Quorum(3, 3, 2), random.Random(0), topology=topology(where), policy=DEFAULT
    )
    assert not chosen.short
    assert len(chosen.absent) == 1


def test_hosts_that_nobody_knows_are_asked_for_nothing() -> None:
    chosen = choose_ensemble([Candidate(b) for b in "abc"], Quorum(3, 3, 2), random.Random(0), policy=DEFAULT)
    assert not chosen.short


def test_a_slow_bookie_is_avoided_where_its_host_has_another() -> None:
    where = [0, 0, 1, 1, 2, 2]
    candidates = [Candidate(f"b{n}", latency_s=3.0 if n == 0 else 0.01) for n in range(6)]
    for seed in range(20):
        chosen = choose_ensemble(
            candidates, Quorum(3, 3, 2), random.Random(seed), topology=topology(where), policy=DEFAULT
        )
        assert "b0" not in chosen.members
    many = [Candidate(f"b{n}", latency_s=3.0 if n == 0 else 0.01) for n in range(5)]
    for seed in range(20):
        chosen = choose_ensemble(
            many, Quorum(3, 3, 2), random.Random(seed), topology=topology([0, 1, 2, 3, 4]), policy=DEFAULT
        )
        assert "b0" not in chosen.members, "three copies need three hosts, not all five"


def test_what_no_choice_of_bookies_gives_is_said_for_each_level() -> None:
    def said(where: Sequence[int], size: int, write_quorum: int) -> list[str]:
        candidates = [Candidate(f"b{n}") for n in range(len(where))]
        return [str(one) for one in shortages(candidates, Quorum(size, write_quorum, 2), DEFAULT, topology(where))]

    assert said([0, 0, 1, 1], 3, 3) == [
        "the 3 copies of an entry go to 2 hosts, not to 3: bookies that take entries are in 2 hosts"
    ]
    assert said([0, 1, 2, 0, 1, 2], 5, 3) == [
        "the 3 copies of an entry go to 2 hosts, not to 3: bookies that take entries are in 3 hosts, and an ensemble "
        "of 5 needs more of them, or more bookies in each"
    ]
    assert said([0, 0, 0], 3, 3) == [], "one machine alone"
    assert said([0, 1], 3, 3) == [], "too few bookies are another thing"
    assert said([0, 1, 2], 3, 3) == []
    racks = Topology.of({f"b{n}": f"/rack=r1/host=h{n}" for n in range(3)})
    (one,) = shortages([Candidate(f"b{n}") for n in range(3)], Quorum(3, 3, 2), DEFAULT, racks)
    assert (one.level, one.needed, one.there) == ("rack", 2, 1)
    states = placement_states([one], 7)
    assert [(state.name, state.count) for state in states] == [("too-few-domains", 1), ("ledgers-misplaced", 7)]
