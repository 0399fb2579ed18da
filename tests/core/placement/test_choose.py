import random

import pytest
from tests.support.places import spans

from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.choose import (
    Candidate,
    choose_ensemble,
    choose_with_absent,
    fewest_moves,
    replace_members,
    slow_ones,
)
from buckram.core.placement.policy import PlacementPolicy
from buckram.core.placement.topology import Topology
from buckram.errors import InvalidArgument, NotEnoughBookies

RACKS = PlacementPolicy.parse("rack:2")
STRICT = PlacementPolicy.parse("rack:2 enforce")
Q = Quorum(3, 3, 2)


def flat(n: int) -> list[Candidate]:
    return [Candidate(f"b{i}") for i in range(n)]


def named(*names: str) -> list[Candidate]:
    return [Candidate(name) for name in names]


def test_too_few_bookies_names_the_numbers() -> None:
    with pytest.raises(NotEnoughBookies) as error:
        choose_ensemble(flat(2), Q, random.Random(0))
    assert (error.value.needed, error.value.available) == (3, 2)


def test_quarantined_bookies_are_taken_only_when_needed() -> None:
    candidates = [Candidate(f"b{i}", avoid=i < 2) for i in range(5)]
    for seed in range(20):
        assert set(choose_ensemble(candidates, Q, random.Random(seed)).members) == {"b2", "b3", "b4"}
    assert len(set(choose_ensemble(candidates, Quorum(4, 3, 2), random.Random(1)).members)) == 4
    assert replace_members(candidates, ["b2", "b3", "b4"], [0], 3, random.Random(1))[0] in ("b0", "b1")


def test_without_racks_every_bookie_is_equally_likely_in_every_position() -> None:
    counts = dict.fromkeys((f"b{i}" for i in range(6)), 0)
    rng = random.Random(7)
    for _ in range(3000):
        counts[choose_ensemble(flat(6), Q, rng, policy=RACKS).members[0]] += 1
    assert min(counts.values()) > 380


def test_with_a_write_quorum_of_one_racks_do_not_crowd() -> None:
    where = Topology.of({f"b{i}": f"/r{i % 3}" for i in range(6)})
    seen = {
        choose_ensemble(flat(6), Quorum(2, 1, 1), random.Random(seed), topology=where, policy=RACKS).members
        for seed in range(400)
    }
    assert len(seen) == 30


def test_enforcement_refuses_unknown_racks_and_one_rack() -> None:
    with pytest.raises(NotEnoughBookies, match="5 without a known rack"):
        choose_ensemble(flat(5), Q, random.Random(0), policy=STRICT)
    one = Topology.of({f"b{i}": "/one" for i in range(5)})
    with pytest.raises(NotEnoughBookies) as error:
        choose_ensemble(flat(5), Q, random.Random(0), topology=one, policy=STRICT)
    for said in ("level rack", "`rack:2 enforce`", "in 2 of them", "5 in /one", "start some in another rack"):
        assert said in str(error.value)


def test_soft_rule_takes_the_best_there_is_and_says_so() -> None:
    where = Topology.of({"a": "/r1", "b": "/r1", "c": "/r2"})
    chosen = choose_ensemble(named("a", "b", "c"), Quorum(3, 2, 2), random.Random(0), topology=where, policy=RACKS)
    assert len(chosen.members) == 3
    assert [(set(one.members), one.found) for one in chosen.short] == [({"a", "b"}, ("/r1",))]


def test_replacement_never_returns_a_member_or_an_excluded_one() -> None:
    got = replace_members(flat(5), ["b0", "b1", "b2"], [1], 3, random.Random(3), exclude=["b3"])
    assert got == {1: "b4"}
    with pytest.raises(InvalidArgument):
        replace_members(flat(5), ["b0", "b1", "b2"], [3], 3, random.Random(3))


def test_a_failed_member_that_stays_counts_with_its_rack() -> None:
    """Two failed, one is replaced: the persisted ensemble, the other failed one in it, still meets the rule (M6)."""
    ensemble, racks = ["a", "b", "c"], {"a": "/r2", "b": "/r1", "c": "/r1", "d": "/r1"}
    got = replace_members(named("d"), ensemble, [0, 1], 3, random.Random(3), topology=Topology.of(racks), policy=STRICT)
    after = [got.get(position, member) for position, member in enumerate(ensemble)]  # type: ignore[call-overload]
    assert spans(after, racks, 3, 2), after
    assert got == {1: "d"}


def test_replacement_is_partial_when_there_is_not_enough() -> None:
    got = replace_members(flat(4), ["b0", "b1", "b2"], [0, 2], 3, random.Random(3))
    assert list(got.values()) == ["b3"]
    assert replace_members(flat(3), ["b0", "b1", "b2"], [0], 3, random.Random(3)) == {}


def test_replacement_keeps_the_racks_apart() -> None:
    where = Topology.of({"a": "/r1", "b": "/r2", "c": "/r1", "d": "/r2"})
    for seed in range(20):
        got = replace_members(
            named("a", "b", "c", "d"), ["a", "b"], [1], 2, random.Random(seed), topology=where, policy=RACKS
        )
        assert got == {1: "d"}


def test_an_enforced_rule_takes_no_replacement_that_breaks_it() -> None:
    where = Topology.of({"a": "/r1", "b": "/r1", "c": "/r2", "d": "/r1"})
    one = named("d")
    assert replace_members(one, ["a", "b", "c"], [2], 3, random.Random(1), topology=where, policy=STRICT) == {}
    got = replace_members(one, ["a", "b", "c"], [2], 3, random.Random(1), topology=where, policy=RACKS)
    assert got == {2: "d"}


def test_same_seed_same_choice_whatever_the_order() -> None:
    paths = {f"b{i}": f"/r{i % 2}" for i in range(8)}
    where, quorum = Topology.of(paths), Quorum(5, 3, 2)
    first = choose_ensemble(flat(8), quorum, random.Random(11), topology=where, policy=RACKS)
    assert first == choose_ensemble(flat(8)[::-1], quorum, random.Random(11), topology=where, policy=RACKS)
    assert spans(first.members, paths, 3, 2)


def test_absent_members_fill_up_an_ensemble() -> None:
    for seed in range(20):
        chosen = choose_with_absent(flat(2), ["away"], Q, random.Random(seed))
        assert set(chosen.members) == {"b0", "b1", "away"}
        assert [chosen.members[p] for p in chosen.absent] == ["away"]


def test_the_first_of_those_away_is_preferred() -> None:
    for seed in range(20):
        chosen = choose_with_absent(flat(3), ["seen", "long gone", "b0"], Quorum(4, 3, 2), random.Random(seed))
        assert set(chosen.members) == {"b0", "b1", "b2", "seen"}


@pytest.mark.parametrize("shape", [(3, 3, 2), (5, 3, 2), (4, 2, 1), (5, 5, 3), (4, 4, 2)])
def test_never_more_than_the_spare_members_are_absent(shape: tuple[int, int, int]) -> None:
    quorum = Quorum(*shape)
    away = [f"away{i}" for i in range(5)]
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
    def chosen(paths: dict[str, str]) -> tuple[str, ...]:
        where = Topology.of(paths)
        return choose_with_absent(named("a", "b"), ["c"], Q, random.Random(1), topology=where, policy=STRICT).members

    with pytest.raises(NotEnoughBookies):
        chosen({"a": "/one", "b": "/one", "c": "/two"})
    assert chosen({"a": "/one", "b": "/two", "c": "/two"})
    with pytest.raises(NotEnoughBookies):  # nobody knows where it is
        chosen({"a": "/one", "b": "/two"})


def test_where_it_can_be_an_absent_member_is_in_another_rack() -> None:
    where = Topology.of({"a": "/one", "b": "/one", "c": "/one", "d": "/two"})
    for seed in range(10):
        chosen = choose_with_absent(named("a", "b"), ["c", "d"], Q, random.Random(seed), topology=where, policy=RACKS)
        assert "d" in chosen.members


def test_heavier_bookies_are_drawn_more_often_and_none_is_left_out() -> None:
    sizes = [100, 100, 100, 1000, 0]
    candidates = [Candidate(f"b{i}", free_bytes=size) for i, size in enumerate(sizes)]
    policy, counts = PlacementPolicy.parse("any weights"), dict.fromkeys((f"b{i}" for i in range(5)), 0)
    rng = random.Random(5)
    for _ in range(2000):
        for member in choose_ensemble(candidates, Quorum(2, 2, 2), rng, policy=policy).members:
            counts[member] += 1
    assert counts["b3"] > 1.5 * max(counts[f"b{i}"] for i in (0, 1, 2, 4))
    assert min(counts.values()) > 400


def test_a_slow_bookie_is_taken_only_where_there_is_no_other_choice() -> None:
    candidates = [Candidate(f"b{i}", latency_s=0.5 if i == 0 else 0.005) for i in range(4)]
    for seed in range(50):
        assert "b0" not in choose_ensemble(candidates, Quorum(3, 2, 2), random.Random(seed)).members
        assert replace_members(candidates, ("b1", "b2"), [0], 2, random.Random(seed)) == {0: "b3"}
    assert "b0" in choose_ensemble(candidates, Quorum(4, 2, 2), random.Random(1)).members
    slow = slow_ones(candidates)
    assert slow == {"b0": "its adds took 500 ms lately, those of others 5 ms"}


def test_a_slow_bookie_is_taken_where_no_other_one_is_in_a_second_rack() -> None:
    candidates = [Candidate(f"b{i}", latency_s=0.5 if i == 0 else 0.005) for i in range(5)]
    two = Topology.of({f"b{i}": "/r1" if i == 0 else "/r2" for i in range(5)})
    three = Topology.of({f"b{i}": f"/r{min(i, 2)}" for i in range(5)})
    for seed in range(20):
        got = choose_ensemble(candidates, Quorum(2, 2, 2), random.Random(seed), topology=two, policy=RACKS)
        assert "b0" in got.members
        got = choose_ensemble(candidates, Quorum(2, 2, 2), random.Random(seed), topology=three, policy=RACKS)
        assert "b0" not in got.members
        assert not got.short


@pytest.mark.parametrize(
    ("latencies", "slow"),
    [
        ((0.021, 0.005, 0.005), [0]),
        ((0.019, 0.001, 0.001), []),  # it may be many times as slow: nobody minds so little
        ((0.5, 0.2, 0.2), []),  # all are slow
        ((0.5, 0.001), []),  # which of two is the usual one?
        ((0.5, 0.5, 0.001, 0.001, 0.001), [0, 1]),
        ((None, None, 0.5, 0.001), []),
        ((0.5, 0.001, 0.001, None), [0]),
    ],
)
def test_slow_is_what_takes_several_times_the_median_of_the_others(
    latencies: tuple[float | None, ...], slow: list[int]
) -> None:
    found = slow_ones([Candidate(f"b{i}", latency_s=one) for i, one in enumerate(latencies)])
    assert list(found) == [f"b{i}" for i in slow]


def test_a_ledger_with_a_label_gets_the_bookies_of_its_group() -> None:
    labels = {"b0": ("gold",), "b1": ("gold",), "b2": ("gold", "silver"), "b3": ("silver",)}
    where, gold = Topology({}, labels), PlacementPolicy.parse("label=gold")
    for seed in range(10):
        got = choose_ensemble(flat(8), Q, random.Random(seed), topology=where, policy=gold)
        assert set(got.members) == {"b0", "b1", "b2"}
        assert not got.short
        others = choose_ensemble(flat(8), Q, random.Random(seed), topology=where)
        assert not set(others.members) & set(labels), "who asks for no label leaves the tenants alone"
    four = choose_ensemble(flat(8), Quorum(4, 4, 3), random.Random(1), topology=where, policy=gold)
    assert "b3" not in four.members, "never those of another tenant"
    assert [one.level for one in four.short] == ["label"]
    strict = PlacementPolicy.parse("label=gold enforce")
    with pytest.raises(NotEnoughBookies, match="label gold"):
        choose_ensemble(flat(8), Quorum(4, 4, 3), random.Random(1), topology=where, policy=strict)


def test_a_rule_for_each_level_at_once() -> None:
    paths = {f"b{i}": f"/{'eu' if i < 6 else 'us'}/z{i % 3}/r{i % 2}" for i in range(12)}
    policy = PlacementPolicy.parse("region:2 zone:3 rack:4 enforce")
    for seed in range(30):
        got = choose_ensemble(
            flat(12), Quorum(6, 4, 3), random.Random(seed), topology=Topology.of(paths), policy=policy
        )
        for level, least in (("region", 2), ("zone", 3), ("rack", 4)):
            assert spans(got.members, paths, 4, least, level)


def test_desired_is_taken_where_it_is_there() -> None:
    policy = PlacementPolicy.parse("zone:2-3 enforce")
    three = {f"b{i}": f"/zone=z{i % 3}/rack=r" for i in range(6)}
    two = {f"b{i}": f"/zone=z{i % 2}/rack=r" for i in range(6)}
    for paths, zones in ((three, 3), (two, 2)):
        got = choose_ensemble(flat(6), Q, random.Random(2), topology=Topology.of(paths), policy=policy)
        assert len({paths[b] for b in got.members}) == zones


def test_the_fewest_moves_that_make_an_ensemble_good() -> None:
    where = Topology.of({"a": "/r1", "b": "/r1", "c": "/r1", "d": "/r2", "e": "/r1"})
    moves = fewest_moves(
        named("a", "b", "c", "d", "e"), ["a", "b", "c"], Q, random.Random(1), topology=where, policy=RACKS
    )
    assert moves is not None
    assert list(moves.values()) == ["d"]
    assert fewest_moves(named("e"), ["a", "b", "c"], Q, random.Random(1), topology=where, policy=RACKS) is None
    assert fewest_moves(named("e"), ["a", "b", "d"], Q, random.Random(1), topology=where, policy=RACKS) == {}
