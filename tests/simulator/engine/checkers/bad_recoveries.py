"""Histories of recoveries that take an entry for absent too early, and of lying bookies. Each breaks one invariant."""

from __future__ import annotations

from tests.simulator.engine.checkers.history import DIGEST, LEDGER, History

from buckram.errors import Code
from buckram.types import KeyValue
from simulator.engine.checkers.absence import NOTICE_S
from simulator.engine.checkers.wire import Answer, Request


def _fenced(h: History) -> History:
    h.recovery()
    for bookie in h.ensemble:
        h.fence(bookie, -1, Code.OK)
    return h


def _answers_with_copy(h: History, bookie: str, entry: int, lac: int = -1) -> None:
    """The bookie answers a recovery with a copy of the entry, whose header has this LAC."""
    request = Request("read", "c1", bookie, LEDGER, entry, fence=True)
    request.delivered_at = h.time
    h.judge.answer_delivered(Answer(request, Code.OK, [h.stored(entry, lac=lac)], first=entry))


def closed_below_a_copy() -> History:
    h = History()
    h.write(1)
    h.submit()
    h.add("b3", 1)
    _fenced(h)
    h.fence("b1", 1)
    h.fence("b2", 1)
    _answers_with_copy(h, "b3", 1)
    h.close(0, "c1")
    return h


def closed_without_the_answer_of_a_well_bookie() -> History:
    h = History()
    h.write(1)
    _fenced(h)
    h.judge.facts.bookie("b3").running = True
    h.fence("b1", 1)
    h.fence("b2", 1)
    h.close(0, "c1")
    return h


def closed_without_the_answer_of_one_that_came_back() -> History:
    """No violation: its session had ended, and nobody could know its address before it was registered again."""
    h = History()
    h.write(1)
    h.judge.key_changed("b3", "/ledgers/available/b3", None, KeyValue(b"", 0))
    _fenced(h)
    h.judge.facts.bookie("b3").running = True
    h.fence("b1", 1)
    h.fence("b2", 1)
    h.close(0, "c1")
    return h


def closed_without_the_answer_of_one_that_came_back_just_now() -> History:
    """No violation: the event of its registration was still on its way to the client when the recovery began."""
    h = History()
    h.write(1)
    h.judge.key_changed("b3", "/ledgers/available/b3", None, KeyValue(b"", 0))
    h.time += NOTICE_S / 2
    _fenced(h)
    h.judge.facts.bookie("b3").running = True
    h.fence("b1", 1)
    h.fence("b2", 1)
    h.close(0, "c1")
    return h


def closed_below_a_header() -> History:
    h = History()
    h.write(1)
    h.submit(2)
    h.add("b3", 2)
    _fenced(h)
    for bookie in h.ensemble:
        h.fence(bookie, 1)
    _answers_with_copy(h, "b3", 2, lac=1)
    h.close(0, "c1")
    return h


def closed_below_a_sealed_lac() -> History:
    h = History()
    h.write(1)
    _fenced(h)
    for bookie in h.ensemble:
        h.fence(bookie, 1)
    request = Request("read_lac", "c1", "b2", LEDGER)
    h.judge.answer_delivered(Answer(request, Code.OK, lac_packet=DIGEST.seal_lac(LEDGER, 1)))
    h.close(0, "c1")
    return h


def recovery_ignores_a_reachable_honest_bookie() -> History:
    """b1 lies, and the recoverer could have asked b2."""
    h = History((2, 2, 2))
    h.judge.facts.bookie("b1").liar = True
    h.judge.facts.bookie("b2").running = True
    h.write(2)
    _fenced(h)
    h.close(0, "c1")
    return h


def acknowledged_by_a_liar_alone() -> History:
    h = History((3, 3, 3))
    h.judge.facts.bookie("b1").liar = True
    h.write(1, on=("b1", "b2"))
    return h


def closed_with_a_liar_alone() -> History:
    h = History((2, 2, 2))
    h.judge.facts.bookie("b1").liar = True
    h.submit()
    h.add("b1", 0)
    _fenced(h)
    h.close(0, "c1")
    return h


def convicts_an_honest_bookie() -> History:
    h = History()
    h.judge.key_changed("c1", "/buckram/convicted/b2", None, KeyValue(b"{}", 0))
    return h
