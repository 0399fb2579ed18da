"""Tables that principals share: nobody alone keeps others out, and whoever holds most loses his oldest."""

from __future__ import annotations

from buckram.core.tenants.fair_share import FairShare, Owned, holder_of

MALLORY, ALICE = "token:mallory", "token:alice"


def test_the_last_eighth_is_for_those_who_hold_little() -> None:
    share = FairShare(16)
    taken = 0
    while share.has_room(MALLORY):
        share.take(MALLORY)
        taken += 1
    assert taken == 14
    assert share.said(MALLORY, "streams are open") == (
        "14 streams are open, 14 of them of token:mallory, and the last 2 are kept for others"
    )
    assert share.has_room(ALICE)
    for _ in range(2):
        assert share.has_room(ALICE)
        share.take(ALICE)
    assert not share.has_room(ALICE)
    assert share.said(ALICE, "streams are open") == "16 streams are open"
    share.give(MALLORY)
    assert not share.has_room(MALLORY)
    assert share.total == 15


def test_a_size_that_does_not_fit_is_refused() -> None:
    share = FairShare(800)
    assert share.has_room(MALLORY, 700)
    assert not share.has_room(MALLORY, 701)
    share.take(MALLORY, 700)
    assert share.has_room(ALICE, 100)
    assert not share.has_room(ALICE, 101)
    share.give(MALLORY, 700)
    assert share.total == 0


def test_whoever_is_not_known_is_held_to_the_limit_alone() -> None:
    assert [holder_of(name) for name in ("anybody", "onlooker", MALLORY)] == ["", "", MALLORY]
    share = FairShare(16)
    while share.has_room(""):
        share.take("")
    assert share.total == 16
    small = FairShare(2)
    while small.has_room(ALICE):
        small.take(ALICE)
    assert small.total == 2


def test_whoever_holds_most_loses_his_oldest() -> None:
    owned: Owned[int] = Owned()
    for who, key in ((ALICE, 1), (MALLORY, 2), (MALLORY, 3)):
        owned.add(who, key)
    assert (owned.oldest_of_most(), owned.oldest(ALICE), owned.count(MALLORY)) == (2, 1, 2)
    for key in (2, 3, 3):
        owned.remove(MALLORY, key)
    assert (owned.oldest_of_most(), owned.count(MALLORY)) == (1, 0)
