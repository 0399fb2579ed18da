"""Histories in which the disks contradict the messages on the wire. Each breaks one invariant."""

from __future__ import annotations

from tests.simulator.engine.checkers.history import History

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


def wrong_length_on_a_disk() -> History:
    h = History()
    h.write(1)
    h.copies["b2", 0] = h.stored(0, length=1)
    h.close(0)
    return h


def bad_digest_on_an_undamaged_disk() -> History:
    h = History()
    h.write(1)
    h.copies["b2", 0] = h.stored(0)[:-1] + b"?"
    h.close(0)
    return h


def unreadable_on_all_disks() -> History:
    h = History()
    h.write(1)
    for bookie in h.ensemble:
        h.copies[bookie, 0] = b""
    h.close(0)
    return h


def fence_lost_when_its_file_is_replaced() -> History:
    """The fence was durable at the first inspection, but then the bookie replaced the file that contained it."""
    h = History()
    h.recovery()
    h.fence("b1")
    assert h.found == []
    h.superblocks["b1"] = b"other files"
    h.fences["b1"] = False
    h.fence("b1")
    return h


def denies_after_a_restart() -> History:
    """The bookie's log lacks its end, with an entry that it acknowledged, and the bookie does not notice."""
    h = History()
    h.write(2)
    h.on_disk["b1", 1] = False
    h.judge.bookie_started("b1", lambda ledger, entry: True)
    return h


def emptied_bookie_counts_in_its_old_fragment() -> History:
    """A bookie comes back with an empty disk, and its writer goes on with it in the old fragment, long after."""
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
