import random

import pytest
from tests.support.racks import spans_enough_racks

from buckram.core.cluster.placement import (
    Candidate,
    RackRule,
    choose_ensemble,
    choose_with_absent,
    replace_members,
)
from buckram.core.ledgers.quorum import Quorum
from buckram.errors import InvalidArgument, NotEnoughBookies


def flat(n: int) -> list[Candidate]:
    return [Candidate(f"b{i}") for i in range(n)]


def test_too_few_bookies_names_the_numbers() -> None:
    with pytest.raises(NotEnoughBookies) as error:
        choose_ensemble(flat(2), 3, 3, 2, random.Random(0))
    assert (error.value.needed, error.value.available) == (3, 2)


@pytest.mark.parametrize("shape", [(2, 3, 2), (3, 2, 3), (3, 3, 0)])
def test_bad_shapes_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgument):
        choose_ensemble(flat(5), *shape, random.Random(0))


def test_quarantined_bookies_are_taken_only_when_needed() -> None:
    candidates = [Candidate(f"b{i}", avoid=i < 2) for i in range(5)]
    for seed in range(20):
        assert set(choose_ensemble(candidates, 3, 3, 2, random.Random(seed))) == {"b2", "b3", "b4"}
    assert len(set(choose_ensemble(candidates, 4, 3, 2, random.Random(1)))) == 4
    assert replace_members(candidates, ["b2", "b3", "b4"], [0], 3, random.Random(1), racks={})[0] in ("b0", "b1")


def test_without_racks_every_bookie_is_equally_likely_in_every_position() -> None:
    counts = dict.fromkeys((f"b{i}" for i in range(6)), 0)
    rng = random.Random(7)
    for _ in range(3000):
        counts[choose_ensemble(flat(6), 3, 3, 2, rng)[0]] += 1
    assert min(counts.values()) > 380


def test_with_a_write_quorum_of_one_racks_do_not_crowd() -> None:
    candidates = [Candidate(f"b{i}", f"/r{i % 3}") for i in range(6)]
    seen = {choose_ensemble(candidates, 2, 1, 1, random.Random(seed)) for seed in range(400)}
    assert len(seen) == 30


def test_enforcement_refuses_unknown_racks_and_one_rack() -> None:
    rule = RackRule(2, enforce=True)
    with pytest.raises(NotEnoughBookies):
        choose_ensemble(flat(5), 3, 3, 2, random.Random(0), rule=rule)
    with pytest.raises(NotEnoughBookies, match="racks"):
        choose_ensemble([Candidate(f"b{i}", "/one") for i in range(5)], 3, 3, 2, random.Random(0), rule=rule)


def test_soft_rule_takes_the_best_there_is() -> None:
    candidates = [Candidate("a", "/r1"), Candidate("b", "/r1"), Candidate("c", "/r2")]
    assert len(choose_ensemble(candidates, 3, 2, 2, random.Random(0), rule=RackRule(2))) == 3


def test_replacement_never_returns_a_member_or_an_excluded_one() -> None:
    got = replace_members(flat(5), ["b0", "b1", "b2"], [1], 3, random.Random(3), racks={}, exclude=["b3"])
    assert got == {1: "b4"}


def test_a_failed_member_that_stays_counts_with_its_rack() -> None:
    """Two failed, one is replaced: the persisted ensemble, the other failed one in it, still meets the rule (M6)."""
    ensemble, racks = ["a", "b", "c"], {"a": "/r2", "b": "/r1", "c": "/r1", "d": "/r1"}
    rule = RackRule(2, enforce=True)
    got = replace_members([Candidate("d", "/r1")], ensemble, [0, 1], 3, random.Random(3), racks=racks, rule=rule)
    after = [got.get(position, member) for position, member in enumerate(ensemble)]
    assert spans_enough_racks(after, racks, 3, rule), after
    assert got == {1: "d"}


def test_replacement_is_partial_when_there_is_not_enough() -> None:
    got = replace_members(flat(4), ["b0", "b1", "b2"], [0, 2], 3, random.Random(3), racks={})
    assert list(got.values()) == ["b3"]
    assert replace_members(flat(3), ["b0", "b1", "b2"], [0], 3, random.Random(3), racks={}) == {}


def test_replacement_keeps_the_racks_apart() -> None:
    racks = {"a": "/r1", "b": "/r2", "c": "/r1", "d": "/r2"}
    candidates = [Candidate(b, r) for b, r in racks.items()]
    for seed in range(20):
        got = replace_members(candidates, ["a", "b"], [1], 2, random.Random(seed), racks=racks, rule=RackRule(2))
        assert got == {1: "d"}


def test_same_seed_same_choice_whatever_the_order() -> None:
    candidates = [Candidate(f"b{i}", f"/r{i % 2}") for i in range(8)]
    first = choose_ensemble(candidates, 5, 3, 2, random.Random(11))
    assert first == choose_ensemble(candidates[::-1], 5, 3, 2, random.Random(11))
    assert spans_enough_racks(first, {c.bookie_id: c.rack or "" for c in candidates}, 3, RackRule(2))


def test_absent_members_fill_up_an_ensemble() -> None:
    for seed in range(20):
        chosen = choose_with_absent(flat(2), [Candidate("away")], Quorum(3, 3, 2), random.Random(seed))
        assert set(chosen.members) == {"b0", "b1", "away"}
        assert [chosen.members[p] for p in chosen.absent] == ["away"]


def test_the_first_of_those_away_is_preferred() -> None:
    away = [Candidate("seen"), Candidate("long gone"), Candidate("b0")]
    for seed in range(20):
        chosen = choose_with_absent(flat(3), away, Quorum(4, 3, 2), random.Random(seed))
        assert set(chosen.members) == {"b0", "b1", "b2", "seen"}


@pytest.mark.parametrize("shape", [(3, 3, 2), (5, 3, 2), (4, 2, 1), (5, 5, 3), (4, 4, 2)])
def test_never_more_than_the_spare_members_are_absent(shape: tuple[int, int, int]) -> None:
    quorum = Quorum(*shape)
    away = [Candidate(f"away{i}") for i in range(5)]
    for missing in range(1, quorum.ensemble_size + 1):
        live = flat(quorum.ensemble_size - missing)
        if missing > quorum.write_quorum - quorum.ack_quorum:
            with pytest.raises(NotEnoughBookies):
                choose_with_absent(live, away, quorum, random.Random(1))
            continue
        chosen = choose_with_absent(live, away, quorum, random.Random(1))
        assert len(chosen.absent) == missing
        assert quorum.writable(chosen.absent)


def test_with_an_enforced_rule_the_live_members_span_the_racks() -> None:
    rule, quorum = RackRule(2, enforce=True), Quorum(3, 3, 2)
    here, away = [Candidate("a", "/one"), Candidate("b", "/one")], [Candidate("c", "/two")]
    with pytest.raises(NotEnoughBookies):
        choose_with_absent(here, away, quorum, random.Random(1), rule=rule)
    here[1] = Candidate("b", "/two")
    assert choose_with_absent(here, away, quorum, random.Random(1), rule=rule).members
    with pytest.raises(NotEnoughBookies):  # nobody knows where it is
        choose_with_absent(here, [Candidate("c")], quorum, random.Random(1), rule=rule)


def test_where_it_can_be_an_absent_member_is_in_another_rack() -> None:
    here = [Candidate("a", "/one"), Candidate("b", "/one")]
    away = [Candidate("c", "/one"), Candidate("d", "/two")]
    for seed in range(10):
        assert "d" in choose_with_absent(here, away, Quorum(3, 3, 2), random.Random(seed)).members
