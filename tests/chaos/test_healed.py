"""When a cluster counts as healed, so that the next bookie may be lost."""

from __future__ import annotations

from chaos.healed import Healed, Look


def test_two_checks_that_ended_before_prove_nothing() -> None:
    healed = Healed()
    assert not healed.after(Look("", set(), 1))
    assert not healed.after(Look("", set(), 1))
    assert not healed.after(Look("", set(), 2)), "this check may have begun before everybody was back"
    assert "asked for all copies" in healed.why
    assert healed.after(Look("", set(), 3))


def test_a_ledger_that_was_made_while_a_bookie_was_away_has_to_be_whole() -> None:
    healed = Healed()
    for checked in (1, 2, 3):
        assert not healed.after(Look("bookies ['b4'] are not registered", set(), checked))
    assert "b4" in healed.why
    for checked in (3, 4):
        assert not healed.after(Look("", {501}, checked))
    assert not healed.after(Look("", {501}, 5))
    assert "501" in healed.why
    assert healed.after(Look("", set(), 5))


def test_ledgers_that_are_marked_later_are_no_reason_to_wait_but_at_the_end() -> None:
    healed, at_the_end = Healed(), Healed(everything=True)
    for checked in (1, 2):
        assert not healed.after(Look("", set(), checked))
        assert not at_the_end.after(Look("", set(), checked))
    for look in (Look("", {1, 2}, 3), Look("", {2, 3}, 4)):
        assert not healed.after(look)
        assert not at_the_end.after(look)
    assert healed.after(Look("", {3, 4}, 5))
    assert not at_the_end.after(Look("", {3, 4}, 5))
    assert at_the_end.after(Look("", set(), 5))


def test_whoever_goes_away_again_makes_it_begin_anew() -> None:
    healed = Healed()
    for checked in (1, 2):
        assert not healed.after(Look("", set(), checked))
    assert not healed.after(Look("there is no auditor", set(), 3))
    assert not healed.after(Look("", set(), 4))
    assert not healed.after(Look("", set(), 5))
    assert healed.after(Look("", set(), 6))
