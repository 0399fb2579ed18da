"""M6: every window of a placement spans enough racks whenever some placement does."""

import random
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.places import spans

from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.choose import Candidate, choose_ensemble, fewest_moves, replace_members
from buckram.core.placement.policy import LevelRule, PlacementPolicy
from buckram.core.placement.topology import Topology
from buckram.errors import NotEnoughBookies

racks = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(racks, st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.booleans(), st.integers(0, 2**32))
def test_the_rule_is_met_whenever_it_can_be(
    where: list[int], size: int, write_quorum: int, least: int, enforce: bool, seed: int
) -> None:
    write_quorum = min(size, write_quorum)
    policy = PlacementPolicy((LevelRule("rack", least, enforce=enforce),))
    paths = {f"b{i}": f"/r{r}" for i, r in enumerate(where)}
    candidates = [Candidate(b) for b in paths]
    possible = any(spans(order, paths, write_quorum, least) for order in permutations(paths, size))
    quorum = Quorum(size, write_quorum, 1)
    try:
        got = choose_ensemble(candidates, quorum, random.Random(seed), topology=Topology.of(paths), policy=policy)
    except NotEnoughBookies:
        assert len(where) < size or (enforce and not possible)
        return
    assert len(set(got.members)) == size
    good = spans(got.members, paths, write_quorum, least)
    assert good or (not enforce and not possible)
    assert good == (not got.short)


@settings(max_examples=150, deadline=None)
@given(racks, st.integers(1, 5), st.integers(1, 5), st.data())
def test_replacement_keeps_a_good_ensemble_good_under_enforcement(
    where: list[int], size: int, write_quorum: int, data: st.DataObject
) -> None:
    write_quorum = min(size, write_quorum)
    policy = PlacementPolicy((LevelRule("rack", 2, enforce=True),))
    paths = {f"b{i}": f"/r{r}" for i, r in enumerate(where)}
    topology = Topology.of(paths)
    candidates = [Candidate(b, avoid=data.draw(st.booleans())) for b in paths]
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    quorum = Quorum(size, write_quorum, 1)
    try:
        ensemble = choose_ensemble(candidates, quorum, rng, topology=topology, policy=policy).members
    except NotEnoughBookies:
        return
    failed = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    got = replace_members(candidates, ensemble, failed, write_quorum, rng, topology=topology, policy=policy)
    assert set(got) <= failed
    assert not set(got.values()) & set(ensemble)
    assert len(set(got.values())) == len(got)
    changed = [got.get(position, member) for position, member in enumerate(ensemble)]  # type: ignore[call-overload]
    if set(got) == failed:
        assert spans(changed, paths, write_quorum, 2)
    spare = [b for b in paths if b not in ensemble]
    if len(failed) == 1 and not got:
        (seat,) = failed
        for bookie in spare:
            trial = [bookie if position == seat else member for position, member in enumerate(ensemble)]
            assert not spans(trial, paths, write_quorum, 2)


@settings(max_examples=100, deadline=None)
@given(racks, st.integers(2, 4), st.integers(2, 4), st.integers(2, 3), st.integers(0, 2**32))
def test_moves_are_found_whenever_they_exist_and_no_more_than_needed(
    where: list[int], size: int, write_quorum: int, least: int, seed: int
) -> None:
    write_quorum = min(size, write_quorum)
    if len(where) < size:
        return
    paths = {f"b{i}": f"/r{r}" for i, r in enumerate(where)}
    ensemble, quorum = list(paths)[:size], Quorum(size, write_quorum, 1)
    policy, topology = PlacementPolicy((LevelRule("rack", least),)), Topology.of(paths)
    got = fewest_moves(
        [Candidate(b) for b in paths], ensemble, quorum, random.Random(seed), topology=topology, policy=policy
    )
    needed = [
        sum(new != old for new, old in zip(order, ensemble, strict=True))
        for order in permutations(paths, size)
        if spans(order, paths, write_quorum, least)
        and all(new == old or new not in ensemble for new, old in zip(order, ensemble, strict=True))
    ]
    assert (None if got is None else len(got)) == min(needed, default=None)
