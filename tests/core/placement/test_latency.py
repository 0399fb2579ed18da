"""Which bookies are slow, how it is found out that they recovered, and what a writer's probe tells."""

from hypothesis import given
from hypothesis import strategies as st

from buckram.core.placement.latency import FLOOR_S, FORGET_S, RETRY_S, Latencies, Probe, quick_first

ABC = ["a", "b", "c"]


def known(**seconds: float) -> Latencies:
    found = Latencies()
    for bookie, took in seconds.items():
        found.took(bookie, took, 100.0)
    return found


def test_slow_bookies_come_last_and_equals_stay_as_they_are() -> None:
    found = known(a=0.1, b=0.005, c=0.004)
    assert quick_first(ABC, 100.0, (found,)) == ["b", "c", "a"]
    assert quick_first(["c", "a", "b"], 100.0, (found,)) == ["c", "b", "a"]


def test_less_than_a_factor_of_two_counts_for_nothing() -> None:
    found = known(a=0.009, b=0.005, c=0.006)
    assert not found.grades
    assert quick_first(ABC, 100.0, (found,)) == ABC


def test_nobody_minds_what_is_quick_enough() -> None:
    found = known(a=FLOOR_S, b=0.0001, c=0.0002)
    assert quick_first(ABC, 100.0, (found,)) == ABC


def test_one_that_is_not_known_counts_as_quick() -> None:
    found = known(a=0.1, b=0.005)
    assert quick_first(ABC, 100.0, (found,)) == ["b", "c", "a"]
    assert found.recent_s("c", 100.0) is None


def test_a_slow_one_is_tried_again_now_and_then_until_it_is_quick() -> None:
    found = known(a=0.4, b=0.005, c=0.005)
    now = 100.0 + RETRY_S
    assert quick_first(ABC, now - 0.1, (found,)) == ["b", "c", "a"]
    assert quick_first(ABC, now, (found,)) == ABC, "it is tried"
    assert quick_first(ABC, now, (found,)) == ["b", "c", "a"], "by one read"
    found.took("a", 0.005, now)
    found.took("b", 0.005, now)
    assert quick_first(ABC, now, (found,)) == ["b", "c", "a"], "once is not enough after so much"
    now += RETRY_S
    assert quick_first(ABC, now, (found,)) == ABC
    found.took("a", 0.005, now)
    assert quick_first(ABC, now, (found,)) == ABC
    assert not found.grades


def test_a_slow_one_that_would_not_be_asked_first_keeps_its_try() -> None:
    found = known(a=0.4, b=0.005, c=0.005)
    assert quick_first(["b", "a", "c"], 100.0 + RETRY_S, (found,)) == ["b", "c", "a"]
    assert quick_first(ABC, 100.0 + RETRY_S, (found,)) == ABC


def test_a_bookie_that_is_slow_in_one_kind_of_request_comes_last() -> None:
    single, batch = known(a=0.005, b=0.005), known(a=0.1, b=0.02)
    assert quick_first(ABC, 100.0, (single, batch)) == ["b", "c", "a"]


def test_what_is_old_is_forgotten() -> None:
    found = known(a=0.4, b=0.005)
    assert found.recent_s("a", 100.0 + FORGET_S) == 0.4
    assert found.recent_s("a", 100.1 + FORGET_S) is None
    found.took("b", 0.005, 200.0)
    assert not found.grades
    assert quick_first(ABC, 200.0, (found,)) == ABC


def test_the_quickest_one_may_become_the_slowest() -> None:
    found = known(a=0.003, b=0.005, c=0.005)
    for n in range(20):
        found.took("a", 0.3, 100.0 + n)
    assert quick_first(ABC, 119.0, (found,)) == ["b", "c", "a"]


def test_a_single_late_answer_among_many_is_no_verdict() -> None:
    found = known(a=0.005, b=0.005)
    found.took("a", 0.01, 100.001)
    assert not found.grades


@given(st.lists(st.tuples(st.sampled_from(ABC), st.floats(0.0001, 10.0), st.floats(0.0, 30.0))), st.permutations(ABC))
def test_order_is_always_a_permutation_and_grades_never_negative(
    samples: list[tuple[str, float, float]], members: list[str]
) -> None:
    found, now = Latencies(), 0.0
    for bookie, seconds, wait in samples:
        now += wait
        found.took(bookie, seconds, now)
        assert all(found.grades.get(one, 0) >= 0 for one in ABC)
        assert sorted(quick_first(members, now, (found,))) == ABC
        recent = found.recent_s(bookie, now)
        assert recent is not None
        assert recent > 0


def test_a_probe_tells_how_long_each_bookie_takes_and_who_is_late() -> None:
    probe = Probe()
    assert probe.due(0.0)
    assert list(probe.sent(7, ABC, 10.0)) == []
    assert not probe.due(10.05)
    assert probe.acked("a", 10.02) == 10.02 - 10.0
    assert probe.acked("a", 10.03) is None
    assert probe.acked("x", 10.03) is None
    assert probe.entry == 7
    late = dict(probe.sent(9, ABC, 11.0))
    assert late == {"b": 1.0, "c": 1.0}
    for bookie in ABC:
        assert probe.acked(bookie, 11.5) == 0.5
    assert probe.entry == -1, "nothing is followed any more"
