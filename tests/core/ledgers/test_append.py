"""AppendWindow by directed schedules: each is a known way to lose, block or wrongly acknowledge an entry."""

from __future__ import annotations

import struct

import pytest

from buckram.core.ledgers.append import AppendWindow, Run, Send
from buckram.core.ledgers.quorum import Quorum, SpreadRule
from buckram.errors import DuplicateEntry, InvariantViolation
from buckram.types import NO_ENTRY


def frame(payload: int) -> bytes:
    return struct.pack(">I", payload + 6) + b"h" * 6 + b"p" * payload


def push(window: AppendWindow, count: int = 1, size: int = 10) -> list[Send]:
    first = window.enqueue(count, count * size)
    run = Run(first, first + count - 1, frame(size) * count, bytes(28 * count), count * size)
    window.start(run)
    return window.stripe(run)


def window_of(e: int, w: int, a: int, **options: object) -> AppendWindow:
    return AppendWindow(7, Quorum(e, w, a), [f"b{p}" for p in range(e)], **options)  # type: ignore[arg-type]  # options


def test_acknowledged_at_qa_in_id_order() -> None:
    window = window_of(3, 3, 2)
    push(window, 5)
    assert not window.acked(0, 0, 4)
    assert window.acked(1, 0, 1)
    assert (window.lac, window.pending_entries) == (1, 5), "room comes back by runs"
    assert not window.acked(2, 3, 4), "entries behind a hole wait"
    assert window.acked(2, 2, 2)
    assert (window.lac, window.pending_entries, window.pending_bytes) == (4, 0, 0)


def test_an_answer_of_a_replaced_bookie_does_not_count() -> None:
    window = window_of(3, 3, 2)
    push(window)
    window.acked(0, 0, 0)
    assert window.failed(0) == 0
    assert window.freeze() == 0
    sends, moved = window.resume(["n0", "b1", "b2"])
    assert [(s.position, s.rows) for s in sends] == [(0, ((0, 0),))]
    assert not moved
    assert not window.acked(0, 0, 0), "slot 0 is the old bookie's"
    assert not window.acked(sends[0].slot, 0, 0)
    assert window.acked(1, 0, 0)


def test_all_are_reset_before_anything_is_acknowledged() -> None:
    """Trap 1: an entry without the replaced position sits before one that the replaced bookie completed."""
    window = window_of(6, 2, 2)
    push(window, 6)
    for position in (1, 2):
        window.acked(position, 1, 1)  # entry 1 is complete without position 0
    for position in (0, 5):
        window.acked(position, 5, 5)
    for position in (2, 3):
        window.acked(position, 2, 2)
    assert window.lac == -1
    window.failed(0)
    window.freeze()
    window.acked(1, 0, 0)
    sends, moved = window.resume(["n0", "b1", "b2", "b3", "b4", "b5"])
    assert not moved
    assert [s.rows for s in sends] == [((0, 0), (5, 5))]
    assert window.acked(sends[0].slot, 0, 0)
    assert window.lac == 2
    for position, entry in ((3, 3), (4, 3), (4, 4), (5, 4)):
        window.acked(position, entry, entry)
    assert window.lac == 4, "entry 5 needs the new bookie, however often the old one acknowledged it"
    assert window.acked(sends[0].slot, 5, 5)


def test_an_entry_that_kept_its_quorum_is_acknowledged_by_the_change_itself() -> None:
    """L4: no other event may be needed."""
    window = window_of(3, 3, 2)
    push(window)
    window.failed(2)
    window.freeze()
    assert not window.acked(0, 0, 0)
    assert not window.acked(1, 0, 0), "nothing is acknowledged while a change runs"
    sends, moved = window.resume(["b0", "b1", "n2"])
    assert moved
    assert window.lac == 0
    assert [s.rows for s in sends] == [((0, 0),)], "the new member still gets its copy"


def test_back_to_the_first_bookie_is_a_change_too() -> None:
    """Trap 28: A, B, A between failure and resume must resend and must not believe A's old answers."""
    window = window_of(2, 2, 2)
    push(window, 2)
    window.acked(0, 0, 1)
    window.acked(1, 0, 0)
    window.failed(1)
    window.freeze()
    window.resume(["b0", "x"])
    window.failed(window.slots[1])
    window.freeze()
    sends, _ = window.resume(["b0", "b1"])
    assert [s.rows for s in sends] == [((1, 1),)]
    assert not window.acked(1, 1, 1), "the answer to the first sending"
    assert window.acked(window.slots[1], 1, 1)


def test_failures_during_a_change_stay_absent_until_recorded() -> None:
    window = window_of(4, 3, 2)
    push(window, 4)
    window.failed(0)
    window.freeze()
    assert window.failed(1) == 1
    assert window.failed(1) is None
    with pytest.raises(InvariantViolation):
        window.freeze()
    sends, _ = window.resume(["n0", "b1", "b2", "b3"])
    assert window.absent == {1: "b1"}
    assert {s.position for s in sends} == {0}
    assert [position for position, _ in window.live()] == [0, 2, 3]
    assert window.survives()


def test_a_member_that_returns_counts_only_for_what_it_acknowledges_again() -> None:
    window = window_of(3, 3, 2)
    push(window, 2)
    window.acked(0, 0, 1)
    window.failed(0)
    window.freeze()
    window.resume(window.ensemble)  # no replacement: degraded
    assert not window.acked(1, 0, 1), "its old acknowledgement is void"
    sends = window.readmit([0])
    assert [s.rows for s in sends] == [((0, 1),)]
    assert window.acked(sends[0].slot, 0, 0)
    assert window.lac == 0
    assert window.acked(2, 1, 1)


def test_a_resend_starts_after_the_head() -> None:
    window = window_of(3, 3, 2)
    push(window, 4, size=3)
    window.acked(0, 0, 2)
    window.acked(1, 0, 2)
    assert window.lac == 2
    window.failed(2)
    assert window.freeze() == 3
    sends, _ = window.resume(["b0", "b1", "n2"])
    assert [(s.rows, s.data, len(s.acks)) for s in sends] == [(((3, 3),), frame(3), 28)]


def test_close_counts_the_acknowledged_part_of_a_run() -> None:
    window = window_of(3, 3, 2)
    push(window, 4, size=10)
    push(window, 2, size=100)
    window.enqueue(1, 1000)  # not yet sent
    for slot in (0, 2):
        window.acked(slot, 0, 2)
    assert window.close() == (2, 30)
    assert window.length == 30
    assert not window.acked(1, 0, 3), "late answers are ignored"
    assert window.failed(1) is None
    assert window.close() == (2, 30)


def test_a_change_is_cut_short_by_close() -> None:
    window = window_of(2, 2, 1)
    push(window)
    window.failed(0)
    window.freeze()
    assert window.close() == (-1, 0)
    assert not window.changing


def test_deferred_sync_moves_the_lac_only_by_force() -> None:
    window = window_of(3, 3, 2, deferred_sync=True)
    push(window, 3)
    window.acked(0, 0, 1)
    assert window.acked(1, 0, 1)
    assert (window.lac, window.pending_head) == (-1, 1)
    point = window.force_point()
    assert point == (1, 20)
    for slot in (0, 1):
        window.acked(slot, 2, 2)
    window.forced(point)
    assert window.lac == 1
    window.forced((0, 10))
    assert window.lac == 1, "never back (S12)"
    assert window.close() == (1, 20), "length and last entry agree (S13)"


def test_deferred_sync_forbids_a_change() -> None:
    window = window_of(3, 3, 2, deferred_sync=True)
    window.failed(0)
    with pytest.raises(InvariantViolation, match="M3"):
        window.freeze()


def test_explicit_ids_wait_for_the_gap_and_refuse_duplicates() -> None:
    window = window_of(3, 3, 2, explicit_ids=True, deferred_sync=True)

    def take(entry: int) -> None:
        window.enqueue_at(entry, 10)
        window.start(Run(entry, entry, frame(10), bytes(28), 10))

    for entry in (0, 1, 3):
        take(entry)
        for slot in (0, 1):
            window.acked(slot, entry, entry)
    assert (window.pending_head, window.lac, window.next_entry, window.reachable) == (1, -1, 4, 1)
    for duplicate in (1, 3, 0):  # acknowledged but above the LAC; pending; below (M1, trap 25)
        with pytest.raises(DuplicateEntry, match=str(duplicate)):
            window.enqueue_at(duplicate, 10)
    take(2)
    assert window.reachable == 3
    window.acked(2, 2, 2)
    assert window.acked(0, 2, 2)
    assert window.pending_head == 3
    assert window.force_point() == (3, 40)


def test_a_bookie_cannot_acknowledge_what_was_never_sent() -> None:
    window = window_of(1, 1, 1)
    push(window)
    with pytest.raises(InvariantViolation, match="S9"):
        window.acked(0, 0, 1)


def test_fault_domains_are_counted_over_present_members() -> None:
    """M5, trap 19: a replaced bookie's rack no longer counts, and the last replica ends the wait."""
    racks = {"b0": "r1", "b1": "r1", "b2": "r2", "n2": "r1", "m2": "r3"}
    window = window_of(3, 3, 2, spread=[SpreadRule("rack", 2, True, racks.get)])
    push(window)
    window.acked(0, 0, 0)
    assert not window.acked(1, 0, 0), "two copies in one rack"
    window.failed(2)
    window.freeze()
    window.resume(["b0", "b1", "n2"])
    assert not window.acked(window.slots[2], 0, 0)
    window.failed(window.slots[2])
    window.freeze()
    window.resume(["b0", "b1", "m2"])
    assert window.acked(window.slots[2], 0, 0)


def test_a_window_without_a_rack_cannot_go_on() -> None:
    """M5: two of three members are enough copies, but not where both are in one rack."""
    racks = {"b0": "r1", "b1": "r1", "b2": "r2"}
    window = window_of(3, 3, 2, spread=[SpreadRule("rack", 2, True, racks.get)])
    window.failed(0)
    assert window.survives()
    other = window_of(3, 3, 2, spread=[SpreadRule("rack", 2, True, racks.get)])
    other.failed(2)
    assert not other.survives()
    anywhere = window_of(3, 3, 2)
    anywhere.failed(2)
    assert anywhere.survives()


def test_striped_entries_each_wait_for_their_own_racks() -> None:
    racks = {"b0": "r1", "b1": "r1", "b2": "r2", "b3": "r2"}
    window = window_of(4, 3, 2, spread=[SpreadRule("rack", 2, True, racks.get)])
    push(window, 4)
    window.acked(0, 0, 3)
    window.acked(1, 0, 3)
    assert window.lac == NO_ENTRY, "entry 0 is on 0, 1 and 2: both copies are in one rack"
    window.acked(2, 0, 2)
    assert window.lac == 2
    assert window.acked(3, 1, 3)
    assert window.lac == 3


def test_levels_are_counted_side_by_side() -> None:
    """Three racks of two regions: copies in two racks of one region are not enough."""
    region, rack = {"b0": "eu", "b1": "eu", "b2": "us"}, {"b0": "r1", "b1": "r2", "b2": "r3"}
    rules = [SpreadRule("region", 2, True, region.get), SpreadRule("rack", 2, True, rack.get)]
    window = window_of(3, 3, 2, spread=rules)
    push(window)
    window.acked(0, 0, 0)
    assert not window.acked(1, 0, 0)
    assert window.acked(2, 0, 0)


def test_a_rule_that_is_not_strict_asks_for_what_there_is() -> None:
    racks = {"b0": "r1", "b1": "r1", "b2": "r2"}
    window = window_of(3, 3, 2, spread=[SpreadRule("rack", 2, False, racks.get)])
    push(window)
    window.acked(0, 0, 0)
    assert not window.acked(1, 0, 0), "the second rack is there"
    window.failed(2)
    assert window.survives()
    window.freeze()
    _, moved = window.resume(["b0", "b1", "b2"])
    assert moved, "the second rack is gone: two copies are the best there is"


def test_a_place_that_is_learnt_later_counts_from_then_on() -> None:
    racks = {"b0": "r1"}
    window = window_of(2, 2, 2, spread=[SpreadRule("rack", 2, True, racks.get)])
    push(window)
    window.acked(0, 0, 0)
    window.acked(1, 0, 0)
    assert window.lac == NO_ENTRY
    racks["b1"] = "r2"
    assert window.relocated()
    assert window.lac == 0
    racks["b1"] = "r1"
    assert not window.relocated()
    assert window.lac == 0, "what was acknowledged stays so"
