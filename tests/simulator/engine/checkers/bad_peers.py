"""Histories in which readers, bookies, recoveries or repairs are wrong. Each breaks one invariant."""

from __future__ import annotations

from tests.simulator.engine.checkers.history import LEDGER, History, good

from buckram.errors import Code, DuplicateEntry, LedgerFenced, NotEnoughBookies
from buckram.types import Fragment, LedgerState
from simulator.engine.checkers.wire import Request
from simulator.engine.pace import Pace


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


def absent_although_one_did_not_answer() -> History:
    h = History()
    h.write(1)
    for bookie in ("b1", "b2"):
        request = Request("read", "r1", bookie, LEDGER, 0)
        h.judge.request_sent(request)
        h.answer(request, Code.NO_ENTRY)
    h.read([], error="NoSuchEntry", error_entry=0)
    return h


def absent_in_an_ensemble_that_was_replaced(pace: Pace | None = None) -> History:
    """Bad where messages of metadata are never late: a reader who could not know of the change is right."""
    h = History(pace=pace)
    h.submit()
    for bookie in h.ensemble:
        request = Request("read", "r1", bookie, LEDGER, 0)
        h.judge.request_sent(request)
        h.answer(request, Code.NO_ENTRY)
    h.change("w1", fragments=(Fragment(0, ("b4", "b2", "b3")),))
    h.read([], error="NoSuchEntry", error_entry=0)
    return h


def final_read_stops_short() -> History:
    h = History()
    h.write(2)
    h.close(1)
    h.read([0], kind="final")
    return h


def append_ends_twice() -> History:
    h = History()
    h.write(1)
    h.judge.failed(h.handle, 0, LedgerFenced(LEDGER))
    return h


def recovery_reads_before_enough_fences() -> History:
    h = History((4, 2, 2))
    h.write(1)
    h.recovery()
    h.fence("b1", -1)
    h.fence("b1", 0, Code.OK)
    return h


def fence_not_durable() -> History:
    h = History()
    h.fences["b1"] = False
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


def stored_after_it_was_denied() -> History:
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


def recovery_reads_from_another_bookie() -> History:
    h = History()
    h.write(1)
    h.recovery()
    for bookie in h.ensemble:
        h.fence(bookie, -1, Code.OK)
    h.fence("b9", 0)
    return h


def ensembles_changed_in_recovery() -> History:
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
    h.judge.life_ended()
    return h


def closed_without_enough_answers() -> History:
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


def recovery_reports_another_end() -> History:
    h = good()
    h.judge.recovery_started("c1", LEDGER)
    h.judge.recovery_ended("c1", LEDGER, 1, 5)
    return h


def opening_a_ledger_fences_it() -> History:
    h = History()
    h.fence("b1", -1, client="r1")
    return h


def opening_a_ledger_changes_metadata() -> History:
    h = History()
    h.change("r1", state=LedgerState.IN_RECOVERY)
    return h


def bookie_deletes_an_open_ledger() -> History:
    h = History()
    h.judge.deleted_by_bookie("b1", LEDGER)
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
    h.judge.force_returned(h.handle, 0)
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


def one_rack_in_the_metadata() -> History:
    h = one_rack()
    h.report.violations.clear()
    h.change("w1", fragments=(Fragment(0, ("b1", "b3")),))
    return h


def replacement_lacks_copies() -> History:
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
    h.judge.check_settled()
    return h


def quorum_but_no_ack() -> History:
    h = History()
    h.submit()
    h.add("b1", 0)
    h.add("b2", 0)
    h.judge.check_settled()
    return h


def poll_not_answered() -> History:
    h = History()
    request = Request("poll", "r1", "b1", LEDGER, -1, wait_s=2.0, delivered_at=h.time)
    h.judge.request_delivered(request)
    h.time += 30
    h.judge.check_settled()
    return h


def not_enough_bookies_although_all_are_well() -> History:
    h = History()
    for bookie in ("b1", "b2", "b3", "b4"):
        h.judge.facts.bookie(bookie).running = True
    h.submit()
    h.judge.failed(h.handle, 0, NotEnoughBookies(3, 2))
    return h
