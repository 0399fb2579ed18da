"""Histories whose wire looks well and whose disks do not, for tests/sim/test_checkers."""

from __future__ import annotations

from tests.sim.history import History

from buckram.types import Fragment


def closed_with_one_copy_on_disk() -> History:
    h = History()
    h.write(2)
    for bookie in ("b1", "b2"):
        h.on_disk[bookie, 1] = False
    h.close(1)
    return h


def changed_with_one_copy_on_disk() -> History:
    h = History((3, 3, 2))
    h.write(2)
    for bookie in ("b2", "b3"):
        h.on_disk[bookie, 0] = False
    h.change("w1", fragments=(Fragment(0, h.ensemble), Fragment(2, ("b1", "b2", "b4"))))
    return h


def on_no_disk_at_the_end() -> History:
    h = History()
    h.write(1)
    h.close(0)
    for bookie in h.ensemble:
        h.on_disk[bookie, 0] = False
    h.judge.life_ended()
    return h


def another_length_on_a_disk() -> History:
    h = History()
    h.write(1)
    h.copies["b2", 0] = h.stored(0, length=1)
    h.close(0)
    return h


def spoiled_on_a_whole_disk() -> History:
    h = History()
    h.write(1)
    h.copies["b2", 0] = h.stored(0)[:-1] + b"?"
    h.close(0)
    return h


def spoiled_on_all_disks() -> History:
    h = History()
    h.write(1)
    for bookie in h.ensemble:
        h.copies[bookie, 0] = b""
    h.close(0)
    return h


def fence_lost_with_its_file() -> History:
    """It was durable when it was asked first; the file that it stood in is another one since."""
    h = History()
    h.recovery()
    h.fence("b1")
    assert h.found == []
    h.superblocks["b1"] = b"other files"
    h.fences["b1"] = False
    h.fence("b1")
    return h


def denies_after_it_came_back() -> History:
    """Its log ends before what it acknowledged, and it takes that for the end."""
    h = History()
    h.write(2)
    h.on_disk["b1", 1] = False
    h.judge.bookie_started("b1", lambda ledger, entry: True)
    return h


def empty_member_counts_again() -> History:
    """It lost its disk, came back empty, and its writer, who must have heard, goes on with it in the old fragment."""
    h = History()
    h.write(1)
    h.tick()
    h.judge.facts.bookie("b1").reborn_at = h.time
    for _ in range(10):
        h.tick()
    h.submit()
    h.add("b1", 1)
    h.add("b2", 1)
    h.acked(1)
    return h
