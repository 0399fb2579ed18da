"""The checkers are checked: each of these histories breaks one rule and must be found out; the good ones must not."""

from __future__ import annotations

import pytest
from tests.sim.history import LEDGER, History

from buckram.errors import Code, DuplicateEntry, LedgerFenced, NotEnoughBookies
from buckram.sim.checkers.report import INVARIANTS
from buckram.sim.checkers.wire import Request
from buckram.types import Fragment, LedgerState


def good() -> History:
    h = History()
    h.write(3)
    h.close(2)
    h.read([0, 1, 2])
    h.read([0, 1, 2], kind="final", client="f1")
    h.judge.quiet()
    h.judge.ended()
    return h


def test_a_good_history_has_no_violation() -> None:
    h = good()
    assert h.report.violations == []
    assert h.report.evaluated["S4"] == 3
    assert h.report.evaluated["S19"] == 1


def test_a_good_recovery_has_no_violation() -> None:
    h = History()
    h.write(2)
    h.recovery()
    for bookie in h.ensemble:
        h.fence(bookie, -1, Code.OK)
    for bookie in ("b1", "b2"):
        h.fence(bookie, 2)
    h.close(1, "c1")
    h.judge.recovery_ends("c1", LEDGER, 1, sum(map(len, h.handle.payloads)))
    h.judge.ended()
    assert h.report.violations == []
    assert h.report.evaluated["F13"] > 0


def closed_below_an_ack() -> History:
    h = History()
    h.write(3)
    h.close(1)
    return h


def ack_after_close() -> History:
    h = good()
    h.submit()
    h.add("b1", 3)
    h.add("b2", 3)
    h.acked(3)
    return h


def closed_twice() -> History:
    h = good()
    h.close(1, "c1")
    return h


def reopened() -> History:
    h = History()
    h.recovery()
    h.change("c1", state=LedgerState.OPEN)
    return h


def moved_away_from_its_copies() -> History:
    h = History()
    h.write(1)
    h.change("w1", fragments=(Fragment(0, ("b7", "b8", "b9")),))
    return h


def one_copy_of_two() -> History:
    h = History()
    h.submit()
    h.add("b1", 0)
    h.acked(0)
    return h


def copies_outside_the_record() -> History:
    h = History()
    h.submit()
    for bookie in ("b1", "b9", "b8"):
        h.add(bookie, 0)
    h.acked(0)
    return h


def closed_with_one_copy() -> History:
    h = History()
    h.submit()
    h.add("b1", 0)
    h.close(0)
    return h


def another_payload_stored() -> History:
    h = History()
    h.submit()
    h.add("b1", 0)
    h.insert("b1", 0, normal=False, body=h.stored(0, payload=b"something else", length=9))
    return h


def sent_as_something_else() -> History:
    h = History()
    h.submit()
    h.add("b1", 0, body=h.stored(0, payload=b"not mine!"))
    return h


def another_length_stored() -> History:
    h = History()
    h.submit()
    h.add("b1", 0)
    h.insert("b1", 0, normal=False, body=h.stored(0, length=12))
    return h


def acks_out_of_order() -> History:
    h = History()
    h.submit(2)
    for bookie in h.ensemble:
        h.add(bookie, 0)
        h.add(bookie, 1)
    h.acked(1)
    h.judge.failed(h.handle, 0, LedgerFenced(LEDGER))
    return h


def ack_never_told() -> History:
    h = History()
    h.submit(2)
    for bookie in h.ensemble:
        h.add(bookie, 0)
        h.add(bookie, 1)
    h.acked(1)
    h.judge.quiet()
    return h


def closed_beyond_what_was_sent() -> History:
    h = History()
    h.write(1)
    h.close(3)
    return h


def the_same_member_twice() -> History:
    h = History()
    h.change("w1", fragments=(Fragment(0, ("b1", "b1", "b3")),))
    return h


def fragment_below_an_ack() -> History:
    h = History()
    h.write(3)
    h.change("w1", fragments=(Fragment(0, h.ensemble), Fragment(2, ("b1", "b2", "b4"))))
    return h


def guessed_version() -> History:
    h = History()
    h.judge.unread_version("w1", "/ledgers/all/7", 3)
    return h


def lac_falls() -> History:
    h = History()
    h.judge.lac_seen(LEDGER, "r1", 4, 3)
    return h


def wrong_length_at_close() -> History:
    h = History()
    h.write(2)
    h.close(1, length=1)
    return h


def wrong_length_in_a_header() -> History:
    h = History()
    h.submit(2)
    h.add("b1", 0)
    h.add("b1", 1, body=h.stored(1, length=99))
    return h


def read_beyond_the_end() -> History:
    h = History()
    h.write(2)
    h.read([0, 1])
    h.close(0)
    return h


def reads_disagree() -> History:
    h = History()
    h.write(1)
    h.read([0])
    h.read([0], payload=b"other")
    return h


def read_above_the_lac() -> History:
    h = History()
    h.write(2)
    h.read([0, 1], lac=0)
    return h


def bad_bytes_reach_a_reader() -> History:
    h = History()
    h.write(1)
    request = Request("read", "r1", "b1", LEDGER, 0)
    h.judge.request_sent(request)
    h.answer(request, Code.OK, bodies=[h.stored(0)[:-1] + b"?"])
    h.read([0], payload=h.handle.payloads[0][:-1] + b"?")
    return h


def absent_though_one_is_silent() -> History:
    h = History()
    h.write(1)
    for bookie in ("b1", "b2"):
        request = Request("read", "r1", bookie, LEDGER, 0)
        h.judge.request_sent(request)
        h.answer(request, Code.NO_ENTRY)
    h.read([], error="NoSuchEntry", error_entry=0)
    return h


def final_read_stops_short() -> History:
    h = History()
    h.write(2)
    h.close(1)
    h.read([0], kind="final")
    return h


def ends_twice() -> History:
    h = History()
    h.write(1)
    h.judge.failed(h.handle, 0, LedgerFenced(LEDGER))
    return h


def read_before_coverage() -> History:
    h = History((4, 2, 2))
    h.write(1)
    h.recovery()
    h.fence("b1", -1)
    h.fence("b1", 0, Code.OK)
    return h


def fence_not_durable() -> History:
    h = History()
    h.fenced_on_disk["b1"] = False
    h.recovery()
    h.fence("b1")
    return h


def add_accepted_after_the_fence() -> History:
    h = History()
    h.submit()
    h.recovery()
    h.fence("b1")
    h.add("b1", 0)
    return h


def inserted_while_fenced() -> History:
    h = History()
    h.submit()
    h.add("b1", 0, None)
    h.recovery()
    h.insert("b1", 0, fenced=True)
    return h


def denied_and_then_gained() -> History:
    h = History()
    h.submit()
    h.add("b1", 0, None)
    h.recovery()
    for bookie in h.ensemble:
        h.fence(bookie)
    h.fence("b1", 0)
    h.insert("b1", 0)
    return h


def denies_what_it_acknowledged() -> History:
    h = History()
    h.write(1)
    request = Request("read", "r1", "b1", LEDGER, 0)
    h.judge.request_sent(request)
    h.answer(request, Code.NO_ENTRY)
    return h


def recovery_reads_elsewhere() -> History:
    h = History()
    h.write(1)
    h.recovery()
    for bookie in h.ensemble:
        h.fence(bookie, -1, Code.OK)
    h.fence("b9", 0)
    return h


def ensembles_published_in_recovery() -> History:
    h = History()
    h.write(1)
    h.recovery()
    h.change("c1", fragments=(Fragment(0, ("b1", "b2", "b4")),))
    return h


def recovery_below_the_last_fragment() -> History:
    h = History()
    h.write(2)
    h.change("w1", fragments=(Fragment(0, h.ensemble), Fragment(2, h.ensemble)))
    h.recovery()
    for bookie in h.ensemble:
        h.fence(bookie, -1, Code.OK)
    h.fence("b1", 0, Code.OK)
    return h


def lac_beyond_the_end() -> History:
    h = History()
    h.submit(2)
    h.add("b1", 0)
    h.add("b2", 0)
    h.add("b1", 1, None, lac=0)
    h.close(-1)
    return h


def ack_long_after_the_fence() -> History:
    h = History()
    h.submit(2)
    h.add("b1", 0)
    h.add("b2", 0)
    h.add("b1", 1, Code.FENCED)
    h.tick()
    h.acked(0)
    return h


def recoveries_lose_an_ack() -> History:
    h = History()
    h.recovery("c1")
    h.recovery("c2")
    h.close(-1, "c2")
    h.write(1)
    h.judge.ended()
    return h


def closed_by_guessing() -> History:
    h = History()
    h.write(1)
    h.recovery()
    for bookie in ("b1", "b2"):
        h.fence(bookie, -1, Code.OK)
    h.fence("b1", 1)
    h.close(0, "c1")
    return h


def wrong_key_accepted() -> History:
    h = History()
    h.submit()
    h.add("b1", 0)
    h.add("b1", 0, client="c1", key=b"x" * 20)
    return h


def wrong_key_stored() -> History:
    h = History()
    h.submit()
    h.add("b1", 0)
    h.insert("b1", 0, key=b"x" * 20)
    return h


def loser_reports_its_own() -> History:
    h = good()
    h.judge.recovery_begins("c1", LEDGER)
    h.judge.recovery_ends("c1", LEDGER, 1, 5)
    return h


def open_fences() -> History:
    h = History()
    h.fence("b1", -1, client="r1")
    return h


def open_writes_metadata() -> History:
    h = History()
    h.change("r1", state=LedgerState.IN_RECOVERY)
    return h


def collects_an_open_ledger() -> History:
    h = History()
    h.judge.buried("b1", LEDGER)
    return h


def explicit_gap() -> History:
    h = History(explicit=True)
    h.submit(2, [0, 5])
    for bookie in h.ensemble:
        h.add(bookie, 5, body=h.stored(1))
    h.acked(1, 5)
    return h


def new_id_refused() -> History:
    h = History(explicit=True)
    h.submit(1, [0])
    h.judge.failed(h.handle, 0, DuplicateEntry(LEDGER, 0))
    return h


def force_without_the_data() -> History:
    h = History(deferred=True)
    h.submit()
    for bookie in h.ensemble:
        request = Request("add", "w1", bookie, LEDGER, 0, None, deferred=True, body=h.stored(0))
        h.judge.request_sent(request)
        h.answer(request, Code.OK)
    h.acked(0)
    h.on_disk["b2", 0] = False
    h.judge.forced(h.handle, 0)
    return h


def deferred_ensemble_changes() -> History:
    h = History(deferred=True)
    h.change("w1", fragments=(Fragment(0, ("b1", "b2", "b4")),))
    return h


def ack_that_would_not_survive() -> History:
    h = History()
    h.on_disk["b1", 0] = h.on_disk["b2", 0] = False
    h.write(1)
    return h


def one_rack() -> History:
    h = History((2, 2, 2))
    for bookie in ("b1", "b2", "b3"):
        h.judge.facts.bookie(bookie).rack = "/one"
    h.judge.facts.ledger(LEDGER).racks = 2
    h.write(1)
    return h


def one_rack_in_the_record() -> History:
    h = one_rack()
    h.report.violations.clear()
    h.change("w1", fragments=(Fragment(0, ("b1", "b3")),))
    return h


def replaced_without_copies() -> History:
    h = good()
    h.judge.repair("c1", LEDGER, begins=True)
    for entry in range(3):
        h.on_disk["b9", entry] = False
    h.change("c1", fragments=(Fragment(0, ("b1", "b2", "b9")),))
    return h


def ack_after_delete() -> History:
    h = History()
    h.submit()
    h.add("b1", 0)
    h.add("b2", 0)
    h.judge.facts.ledger(LEDGER).delete_returned = True
    h.acked(0)
    return h


def append_never_ends() -> History:
    h = History()
    h.submit()
    h.judge.quiet()
    return h


def quorum_but_no_ack() -> History:
    h = History()
    h.submit()
    h.add("b1", 0)
    h.add("b2", 0)
    h.judge.quiet()
    return h


def poll_without_end() -> History:
    h = History()
    request = Request("poll", "r1", "b1", LEDGER, -1, wait_s=2.0, delivered_at=h.time)
    h.judge.request_delivered(request)
    h.time += 30
    h.judge.quiet()
    return h


def gives_up_too_soon() -> History:
    h = History()
    for bookie in ("b1", "b2", "b3", "b4"):
        h.judge.facts.bookie(bookie).running = True
    h.submit()
    h.judge.failed(h.handle, 0, NotEnoughBookies(3, 2))
    return h


BAD = {
    "S1": [closed_below_an_ack, ack_after_close], "S2": [closed_twice, reopened], "S3": [moved_away_from_its_copies],
    "S4": [one_copy_of_two, copies_outside_the_record], "S5": [closed_with_one_copy],
    "S6": [another_payload_stored, sent_as_something_else], "S7": [another_length_stored],
    "S8": [acks_out_of_order, ack_never_told], "S9": [closed_beyond_what_was_sent],
    "S10": [the_same_member_twice, fragment_below_an_ack], "S11": [guessed_version],
    "S12": [lac_falls, moved_away_from_its_copies], "S13": [wrong_length_at_close, wrong_length_in_a_header],
    "S14": [read_beyond_the_end], "S15": [reads_disagree], "S16": [read_above_the_lac],
    "S17": [bad_bytes_reach_a_reader], "S18": [absent_though_one_is_silent], "S19": [final_read_stops_short],
    "S20": [ends_twice], "F1": [read_before_coverage], "F2": [fence_not_durable], "F3": [add_accepted_after_the_fence],
    "F4": [inserted_while_fenced], "F5": [denied_and_then_gained], "F6": [denies_what_it_acknowledged],
    "F7": [recovery_reads_elsewhere], "F8": [ensembles_published_in_recovery], "F9": [recovery_below_the_last_fragment],
    "F10": [lac_beyond_the_end], "F11": [ack_long_after_the_fence], "F12": [recoveries_lose_an_ack],
    "F13": [closed_by_guessing], "F14": [wrong_key_accepted, wrong_key_stored], "F15": [loser_reports_its_own],
    "F16": [open_fences, open_writes_metadata], "F17": [collects_an_open_ledger], "M1": [explicit_gap, new_id_refused],
    "M2": [force_without_the_data], "M3": [deferred_ensemble_changes], "M4": [ack_that_would_not_survive],
    "M5": [one_rack], "M6": [one_rack_in_the_record], "M7": [replaced_without_copies], "M10": [ack_after_delete],
    "L3": [append_never_ends], "L4": [quorum_but_no_ack], "L8": [poll_without_end], "L9": [gives_up_too_soon],
}  # fmt: skip
JUDGED_ELSEWHERE = ("M8", "L1", "L2", "L5", "L6", "L7", "L10", "L11", "L12", "L13")
"""Judged where a life starts a bookie or waits with a deadline; mutants and scenarios show that they can fail."""


@pytest.mark.parametrize(
    ("invariant", "story"), [(name, story) for name, stories in BAD.items() for story in stories],
    ids=lambda value: value if isinstance(value, str) else value.__name__)
def test_a_bad_history_is_found_out(invariant: str, story: object) -> None:
    assert callable(story)
    assert invariant in story().found


def test_every_invariant_has_a_bad_history_or_a_reason() -> None:
    assert sorted([*BAD, *JUDGED_ELSEWHERE]) == sorted(INVARIANTS)
