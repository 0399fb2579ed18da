"""When a lost bookie's ledgers are copied, and when too many went at once for that."""

from hypothesis import given
from hypothesis import strategies as st

from buckram.core.healing.lost_bookies import HealingBrake, Losses

SIX = [f"b{i}" for i in range(6)]


def losses(delay_s: float = 10.0, registered: list[str] | None = None) -> Losses:
    found = Losses(delay_s)
    found.seen(SIX, SIX if registered is None else registered, 0.0)
    return found


def test_a_bookie_is_due_when_the_delay_is_over() -> None:
    found = losses()
    found.seen(SIX, SIX[1:], 100.0)
    assert found.due(109.9) == frozenset()
    assert found.next_due_at(100.0) == 110.0
    assert found.due(110.0) == {"b0"}
    assert found.next_due_at(110.0) is None


def test_a_bookie_that_returns_in_time_was_never_lost() -> None:
    found = losses()
    found.seen(SIX, SIX[1:], 100.0)
    found.seen(SIX, SIX, 105.0)
    assert found.due(120.0) == frozenset()
    found.seen(SIX, SIX[1:], 130.0)
    assert found.due(139.0) == frozenset()
    assert found.due(140.0) == {"b0"}


def test_looking_again_does_not_start_the_delay_anew() -> None:
    found = losses()
    for at in (100.0, 105.0, 109.0):
        found.seen(SIX, SIX[1:], at)
    assert found.due(110.0) == {"b0"}


def test_another_delay_counts_for_bookies_that_are_lost_already() -> None:
    found = losses(300.0)
    found.seen(SIX, SIX[1:], 100.0)
    found.set_delay(5.0)
    assert found.due(105.0) == {"b0"}


def test_who_is_lost_when_an_audit_is_asked_for_is_due_at_once() -> None:
    found = losses(300.0)
    found.seen(SIX, SIX[1:], 100.0)
    found.hurry()
    assert found.due(100.0) == {"b0"}
    found.seen(SIX, SIX[2:], 150.0)
    assert found.due(150.0) == {"b0"}, "b1 went later: it is waited for"
    found.seen(SIX, SIX, 160.0)
    found.seen(SIX, SIX[1:], 170.0)
    assert found.due(170.0) == frozenset(), "b0 was back meanwhile"


def test_the_brake_holds_when_an_audit_is_asked_for() -> None:
    found = losses()
    found.seen(SIX, SIX[3:], 100.0)
    found.hurry()
    assert found.due(100.0) == frozenset()


def test_a_decommissioned_bookie_is_due_at_once() -> None:
    found = losses(300.0)
    found.leaving(["b0"])
    found.seen(SIX, SIX[1:], 100.0)
    assert found.due(100.0) == {"b0"}


def test_more_than_a_third_within_the_delay_sets_the_brake() -> None:
    found = losses()
    found.seen(SIX, SIX[2:], 100.0)
    assert found.brake() is None, "two of six are a third, not more"
    found.seen(SIX, SIX[3:], 105.0)
    brake = found.brake()
    assert brake is not None
    assert brake.bookies == ("b0", "b1", "b2")
    assert brake.why == "3 of 6 bookies went within 10 s"
    assert found.due(1000.0) == frozenset(), "the brake does not go by itself"
    assert found.next_due_at(105.0) is None


def test_the_brake_goes_when_enough_bookies_return() -> None:
    found = losses()
    found.seen(SIX, SIX[3:], 100.0)
    found.seen(SIX, SIX[2:], 101.0)
    assert found.brake() is None
    assert found.due(110.0) == {"b0", "b1"}


def test_the_same_number_one_after_the_other_sets_no_brake() -> None:
    found = losses()
    for number in (1, 2, 3):
        found.seen(SIX, SIX[number:], 100.0 * number)
    assert found.brake() is None
    assert found.due(310.0) == {"b0", "b1", "b2"}


def test_an_operator_lets_it_go_on_for_what_is_lost_now() -> None:
    found = losses()
    found.seen(SIX, SIX[3:], 100.0)
    found.proceed()
    assert found.due(110.0) == {"b0", "b1", "b2"}
    found.seen(SIX, SIX[5:], 111.0)
    assert found.brake() is not None, "two more of three are judged anew"


def test_a_bookie_that_was_allowed_and_came_back_is_judged_anew() -> None:
    found = losses()
    found.seen(SIX, SIX[3:], 100.0)
    found.proceed()
    found.seen(SIX, SIX, 101.0)
    found.seen(SIX, SIX[3:], 102.0)
    assert found.brake() is not None


TEN = [f"b{i}" for i in range(10)]
RACKS = {bookie: ("region /a", f"rack /a/r{int(bookie[1]) // 2}") for bookie in TEN}


def test_a_whole_rack_sets_the_brake() -> None:
    found = Losses(10.0)
    found.seen(TEN, TEN, 0.0, RACKS)
    found.seen(TEN, TEN[1:], 100.0)
    assert found.brake() is None
    found.seen(TEN, TEN[2:], 105.0)
    brake = found.brake()
    assert brake is not None
    assert brake.bookies == ("b0", "b1")
    assert brake.why == "all 2 bookies of rack /a/r0 went within 10 s"
    found.seen(TEN, TEN[1:], 106.0)
    assert found.brake() is None, "one of them is back"


def test_the_widest_domain_that_went_is_named() -> None:
    places = {
        bookie: ("region /b" if bookie < "b3" else "region /a", "rack /b/r" if bookie < "b3" else f"rack /{bookie}")
        for bookie in TEN
    }
    found = Losses(10.0)
    found.seen(TEN, TEN, 0.0, places)
    found.seen(TEN, TEN[3:], 100.0)
    brake = found.brake()
    assert brake is not None
    assert brake.why == "all 3 bookies of region /b went within 10 s"


def test_a_rack_whose_bookies_go_one_after_the_other_sets_no_brake() -> None:
    found = Losses(10.0)
    found.seen(TEN, TEN, 0.0, RACKS)
    found.seen(TEN, TEN[1:], 100.0)
    found.seen(TEN, TEN[2:], 120.0)
    assert found.brake() is None
    assert found.due(130.0) == {"b0", "b1"}


def test_a_rack_of_one_bookie_is_no_reason() -> None:
    found = Losses(10.0)
    found.seen(SIX, SIX, 0.0, {bookie: (f"rack /{bookie}",) for bookie in SIX})
    found.seen(SIX, SIX[1:], 100.0)
    assert found.brake() is None


def test_decommissioned_bookies_set_no_brake() -> None:
    found = losses()
    found.leaving(SIX[:3])
    found.seen(SIX, SIX[3:], 100.0)
    assert found.brake() is None
    assert found.due(100.0) == set(SIX[:3])


def test_bookies_that_no_ledger_names_are_no_loss() -> None:
    found = losses(registered=SIX[3:])
    assert found.brake() is not None
    found.named(SIX[2:])
    assert found.brake() is None
    assert found.due(10.0) == {"b2"}


def test_bookies_that_no_ledger_names_are_no_loss_when_others_go_as_well() -> None:
    found = losses(registered=SIX[2:])
    found.named(SIX[2:])
    found.seen(SIX, [], 100.0)
    brake = found.brake()
    assert brake is not None
    assert brake.bookies == tuple(SIX[2:])
    found.named(SIX[2:])
    assert found.brake() == brake
    found.seen(SIX, SIX[2:], 101.0)
    assert found.brake() is None
    found.named(SIX)
    assert found.due(110.0) == {"b0", "b1"}, "a ledger that was made meanwhile names them"


def test_one_of_two_bookies_is_no_reason_for_the_brake() -> None:
    found = Losses(10.0)
    found.seen(["a", "b"], ["a", "b"], 0.0)
    found.seen(["a", "b"], ["a"], 1.0)
    assert found.brake() is None
    assert found.due(11.0) == {"b"}


@given(st.lists(st.tuples(st.integers(0, 20), st.sets(st.sampled_from(SIX)))), st.integers(0, 30))
def test_nobody_is_due_before_the_delay_or_while_registered(changes: list[tuple[int, set[str]]], later: int) -> None:
    found, now, gone_at = Losses(10.0), 0.0, dict[str, float]()
    for wait, registered in changes:
        now += wait
        found.seen(SIX, registered, now)
        gone_at = {b: gone_at.get(b, now) for b in SIX if b not in registered}
    now += later
    due = found.due(now)
    assert due <= {bookie for bookie, at in gone_at.items() if now - at >= 10.0}
    if found.brake() is None:
        assert due == {bookie for bookie, at in gone_at.items() if now - at >= 10.0}


def test_a_resting_bookie_is_nobodys_loss_until_its_maintenance_is_over() -> None:
    found = losses(registered=SIX[1:])
    found.resting(["b0"])
    found.seen(SIX, SIX[1:], 5.0)
    assert found.due(1000.0) == frozenset()
    assert found.next_due_at(1000.0) is None
    found.resting([])
    found.seen(SIX, SIX[1:], 1000.0)
    assert found.due(1009.0) == frozenset(), "the delay begins when the maintenance is over"
    assert found.due(1010.0) == {"b0"}


def test_resting_bookies_set_no_brake() -> None:
    found = losses()
    found.resting(SIX[:3])
    found.seen(SIX, SIX[3:], 100.0)
    assert found.brake() is None


def test_a_new_auditor_keeps_the_brake_until_a_bookie_is_back() -> None:
    published = HealingBrake(("b0", "b1"), "all 2 bookies of rack r0 went within 10 s")
    fresh = losses(registered=SIX[2:])
    assert fresh.brake() is None, "two of six are no reason by themselves"
    fresh.adopt(published)
    assert fresh.brake() == published
    assert fresh.due(1000.0) == frozenset()
    fresh.seen(SIX, SIX[1:], 1000.0)
    assert fresh.brake() is None
    fresh.seen(SIX, SIX[2:], 1001.0)
    assert fresh.brake() is None, "it is not adopted twice"


def test_an_operators_word_ends_a_brake_of_an_earlier_auditor() -> None:
    fresh = losses(registered=SIX[2:])
    fresh.adopt(HealingBrake(("b0", "b1"), "all 2 bookies of rack r0 went within 10 s"))
    fresh.allow(["b0", "b1"])
    assert fresh.brake() is None
    assert fresh.due(1000.0) == {"b0", "b1"}
