"""M6: every window of a placement spans enough racks whenever some placement does."""

import random
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.racks import spans_enough_racks

from buckram.core.cluster.placement import Candidate, RackRule, choose_ensemble, replace_members
from buckram.errors import NotEnoughBookies

racks = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(racks, st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.booleans(), st.integers(0, 2**32))
def test_the_rule_is_met_whenever_it_can_be(
    where: list[int], size: int, write_quorum: int, min_racks: int, enforce: bool, seed: int
) -> None:
    write_quorum = min(size, write_quorum)
    rule = RackRule(min_racks, enforce)
    rack_of = {f"b{i}": f"/r{r}" for i, r in enumerate(where)}
    candidates = [Candidate(b, r) for b, r in rack_of.items()]
    possible = any(spans_enough_racks(order, rack_of, write_quorum, rule) for order in permutations(rack_of, size))
    try:
        got = choose_ensemble(candidates, size, write_quorum, 1, random.Random(seed), rule=rule)
    except NotEnoughBookies:
        assert len(where) < size or (enforce and not possible)
        return
    assert len(set(got)) == size
    assert spans_enough_racks(got, rack_of, write_quorum, rule) or (not enforce and not possible)


@settings(max_examples=150, deadline=None)
@given(racks, st.integers(1, 5), st.integers(1, 5), st.data())
def test_replacement_keeps_a_good_ensemble_good_under_enforcement(
    where: list[int], size: int, write_quorum: int, data: st.DataObject
) -> None:
    write_quorum = min(size, write_quorum)
    rule = RackRule(2, enforce=True)
    rack_of = {f"b{i}": f"/r{r}" for i, r in enumerate(where)}
    candidates = [Candidate(b, r, avoid=data.draw(st.booleans())) for b, r in rack_of.items()]
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    try:
        ensemble = choose_ensemble(candidates, size, write_quorum, 1, rng, rule=rule)
    except NotEnoughBookies:
        return
    failed = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    got = replace_members(candidates, ensemble, failed, write_quorum, rng, racks=rack_of, rule=rule)
    assert set(got) <= failed
    assert not set(got.values()) & set(ensemble)
    assert len(set(got.values())) == len(got)
    changed = [got.get(position, member) for position, member in enumerate(ensemble)]
    if set(got) == failed:
        assert spans_enough_racks(changed, rack_of, write_quorum, rule)
    spare = [b for b in rack_of if b not in ensemble]
    if len(failed) == 1 and not got:
        (seat,) = failed
        for bookie in spare:
            trial = [bookie if position == seat else member for position, member in enumerate(ensemble)]
            assert not spans_enough_racks(trial, rack_of, write_quorum, rule)
