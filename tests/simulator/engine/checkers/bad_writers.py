"""Histories in which a writer, its record or its acknowledgements are wrong. Each breaks one invariant."""

from __future__ import annotations

from tests.simulator.engine.checkers.history import LEDGER, History, good

from buckram.errors import LedgerFenced
from buckram.types import Fragment, LedgerState


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


def fragments_without_the_copies() -> History:
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


def copies_outside_the_ensemble() -> History:
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


def sent_with_another_payload() -> History:
    h = History()
    h.submit()
    h.add("b1", 0, body=h.stored(0, payload=b"not mine!"))
    return h


def wrong_length_stored() -> History:
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


def earlier_append_never_ends() -> History:
    h = History()
    h.submit(2)
    for bookie in h.ensemble:
        h.add(bookie, 0)
        h.add(bookie, 1)
    h.acked(1)
    h.judge.check_settled()
    return h


def closed_beyond_what_was_sent() -> History:
    h = History()
    h.write(1)
    h.close(3)
    return h


def ensemble_with_a_bookie_twice() -> History:
    h = History()
    h.change("w1", fragments=(Fragment(0, ("b1", "b1", "b3")),))
    return h


def fragment_below_an_ack() -> History:
    h = History()
    h.write(3)
    h.change("w1", fragments=(Fragment(0, h.ensemble), Fragment(2, ("b1", "b2", "b4"))))
    return h


def change_with_a_guessed_version() -> History:
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
