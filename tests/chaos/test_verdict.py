"""The verdict on histories: one without fault passes every rule, each kind of fault breaks the rule that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from buckram.types import DigestType, Fragment, LedgerMetadata
from buckram.types import LedgerState as Kind
from chaos.actors.ledgers import DEFERRED, EXPLICIT, PLACED, PLAIN
from chaos.history import Event
from chaos.payloads import producer_of, record_value
from chaos.plan import ONE_RACK
from chaos.verdict.copies import Copies
from chaos.verdict.judge import End, judge
from chaos.verdict.report import Report
from chaos.verdict.state import LedgerState, State, StreamState


def _metadata(*fragments: Fragment) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        state=Kind.CLOSED,
        fragments=fragments,
        digest_type=DigestType.CRC32C,
        last_entry=9,
        length=100,
    )


def _state() -> State:
    values = [record_value("s1-one", n) for n in range(4)]
    return State(
        {
            1: LedgerState(
                1, _metadata(Fragment(0, ("a", "b", "c")), Fragment(5, ("a", "b", "d"))), 9, 100, total=100, entries=10
            )
        },
        {"one": StreamState("one", [producer_of(value) for value in values], values, [], [(0, 3, True), (3, 4, True)])},
    )


def _events(state: State) -> list[Event]:
    told: list[dict[str, Any]] = [
        {"event": "sent", "ledger": 1, "last": 9},
        {"event": "acked", "ledger": 1, "first": 0, "last": 4, "as_sent": True},
        {"event": "acked", "ledger": 1, "first": 5, "last": 9, "as_sent": True},
        {"event": "closed", "ledger": 1, "last": 9, "length": 100, "kind": DEFERRED, "fragments": 1},
        {"event": "recovered", "ledger": 1, "last": 9, "length": 100},
        {"event": "read", "ledger": 1, "last": 9, "lac": 9, "ended": True, "wrong": "", "fell": False, "beyond": False},
        {"event": "appended", "stream": "one", "sequence": 0, "count": 4, "offsets": [0, 4]},
    ]
    told += [
        {"event": "explicit", "ledger": 1, "first": 0, "in_order": True, "refused": True},
        {"event": "came-back-empty", "bookie": "b2", "why_not": "it is known"},
        {"event": "error", "what": "WriteFailed", "text": ""},
        {"event": "created", "ledger": 1, "kind": PLAIN},
    ]
    events = [{"at": float(n), "actor": "s1", **one} for n, one in enumerate(told)]
    batches = [(0, 3, True), (3, 4, False)]
    for first, stop, begins in batches:
        digest = state.streams["one"].digest(first, stop)
        followed = {"event": "followed", "stream": "one", "offsets": [first, stop], "digest": digest, "wrong": ""}
        events.append({"at": float(len(events)), "actor": "t1", "begins": begins, **followed})
    return events


def _judge(state: State, events: list[Event]) -> set[str]:
    report, copies = Report(), Copies(good=30)
    judge(events, End(state, copies, copies), report)
    assert report.checks["S5"] >= 30
    return {rule for rule, _ in report.violations}


def test_a_history_without_fault_breaks_no_rule() -> None:
    state = _state()
    assert _judge(state, _events(state)) == set()


def _set(number: int, **facts: Any) -> Callable[[State, list[Event]], None]:
    return lambda state, events: events[number].update(facts)


def _end(last: int) -> Callable[[State, list[Event]], None]:
    def change(state: State, events: list[Event]) -> None:
        state.ledgers[1].last, state.ledgers[1].entries = last, last + 1

    return change


def _wrong(text: str) -> Callable[[State, list[Event]], None]:
    return lambda state, events: state.ledgers[1].wrong.append(text)


def _bytes(total: int) -> Callable[[State, list[Event]], None]:
    return lambda state, events: setattr(state.ledgers[1], "total", total)


def _read(entries: int) -> Callable[[State, list[Event]], None]:
    return lambda state, events: setattr(state.ledgers[1], "entries", entries)


def _forced_and_gone(state: State, events: list[Event]) -> None:
    events[10]["kind"] = DEFERRED
    state.ledgers[1].entries = 9


def _fragments(*fragments: Fragment) -> Callable[[State, list[Event]], None]:
    def change(state: State, events: list[Event]) -> None:
        state.ledgers[1].metadata = _metadata(*fragments)

    return change


def _deleted(state: State, events: list[Event]) -> None:
    late = {"ledger": 1, "actor": "c1"}
    events += [{"event": "deletes", "at": 2.5, **late}, {"event": "deleted", "at": 2.6, **late}]
    events += [{"event": "sent", "at": 2.7, "last": 12, **late}]
    events += [{"event": "acked", "at": 2.8, "first": 10, "last": 12, "as_sent": True, **late}]
    del state.ledgers[1]


def _gone(state: State, events: list[Event]) -> None:
    del state.ledgers[1]


def _failed(state: State, events: list[Event]) -> None:
    events.append({"event": "failed", "ledger": 1, "at": 1.5, "actor": "w1"})


def _misplaced(state: State, events: list[Event]) -> None:
    state.misplaced.append("ledger 1: all in one rack")


def _segments(*rows: tuple[int, int, bool]) -> Callable[[State, list[Event]], None]:
    return lambda state, events: state.streams["one"].segments.__setitem__(slice(None), rows)


def _records(change: Callable[[StreamState], None]) -> Callable[[State, list[Event]], None]:
    return lambda state, events: change(state.streams["one"])


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (_end(8), "S1"),
        (_set(4, last=8), "S2"),
        (_set(3, length=99), "S2"),
        (_gone, "S3"),
        (_wrong("entry 3 is b'x'"), "S6"),
        (_bytes(5), "S13"),
        (_read(9), "S19"),
        (_read(9), "M4"),
        (_forced_and_gone, "M2"),
        (_set(2, first=6), "S8"),
        (_failed, "S8"),
        (_set(0, last=8), "S9"),
        (_fragments(Fragment(0, ("a", "b", "b"))), "S10"),
        (_fragments(Fragment(1, ("a", "b", "c"))), "S10"),
        (_set(5, lac=10), "S12"),
        (_set(5, fell=True), "S12"),
        (_set(5, beyond=True), "S16"),
        (_set(9, what="NoSuchEntry"), "S18"),
        (_set(1, as_sent=False), "S20"),
        (_set(7, in_order=False), "M1"),
        (_set(7, refused=False), "M1"),
        (_set(3, fragments=2), "M3"),
        (_set(8, why_not=""), "M8"),
        (_misplaced, "M6"),
        (_segments((0, 3, True), (2, 4, True)), "M9"),
        (_segments((0, 3, False), (3, 4, True)), "M9"),
        (_set(5, wrong="entry 3"), "S14"),
        (_set(5, last=7), "S14"),
        (_deleted, "M10"),
        (_records(lambda stream: stream.records.reverse()), "exactly-once"),
        (_records(lambda stream: stream.records.pop()), "exactly-once"),
        (_records(lambda stream: stream.records.append(("s1-one", 3))), "exactly-once"),
        (_set(6, offsets=[1, 5]), "offsets"),
        (_set(12, offsets=[2, 3]), "follow"),
        (_set(11, digest="00"), "follow"),
    ],
)
def test_a_fault_in_a_history_breaks_its_rule(change: Callable[[State, list[Event]], None], rule: str) -> None:
    state = _state()
    events = _events(state)
    change(state, events)
    assert rule in _judge(state, sorted(events, key=lambda event: event["at"]))


@pytest.mark.parametrize(
    ("kind", "sent_at", "acked_at", "broken"),
    [
        (PLACED, 104.0, 106.0, {"M5"}),
        (PLACED, 104.0, 111.0, set()),
        (PLACED, 101.0, 106.0, set()),
        (PLAIN, 104.0, 106.0, set()),
    ],
)
def test_what_is_sent_while_one_rack_is_left_waits_for_the_others(
    kind: str, sent_at: float, acked_at: float, broken: set[str]
) -> None:
    report, copies = Report(), Copies(good=30)
    told: list[dict[str, Any]] = [
        {"event": "created", "ledger": 1, "kind": kind, "at": 100.0},
        {"event": "sent", "ledger": 1, "last": 4, "at": 100.5},
        {"event": "acked", "ledger": 1, "first": 0, "last": 4, "as_sent": True, "at": 101.0},
        {"event": "fault", "fault": ONE_RACK, "whom": "b1 b2", "seconds": 8.0, "at": 102.0},
        {"event": "sent", "ledger": 1, "last": 9, "at": sent_at},
        {"event": "acked", "ledger": 1, "first": 5, "last": 9, "as_sent": True, "at": acked_at},
    ]
    events: list[Event] = sorted(({"actor": "w1", **one} for one in told), key=lambda event: event["at"])
    judge(events, End(_state(), copies, copies), report)
    assert {rule for rule, _ in report.violations} == broken
    assert report.checks["M5"] == (kind == PLACED and sent_at > 102.0)


def test_a_changed_record_is_no_record() -> None:
    value = record_value("s1-one", 5)
    assert producer_of(value) == ("s1-one", 5)
    with pytest.raises(ValueError, match="is changed"):
        producer_of(value[:-1] + b"!")
    with pytest.raises(ValueError, match="no record"):
        producer_of(b"something else")


def test_copies_that_are_missing_differ_or_are_not_final_break_their_rules() -> None:
    state = _state()
    events = _events(state)
    good, report = Copies(good=30), Report()
    judge(events, End(state, good, Copies(lacking={1: ["b2 lacks 7 of 10"]})), report)
    assert report.violations == [("S5", "b2 lacks 7 of 10")]
    report = Report()
    judge(events, End(state, good, Copies(open=[1]), differing=["b2 holds another payload"]), report)
    assert {rule for rule, _ in report.violations} == {"S5", "S7"}


@pytest.mark.parametrize(("kind", "closed"), [(DEFERRED, True), (EXPLICIT, False)])
def test_a_length_that_recovery_cannot_know_is_not_judged(kind: str, closed: bool) -> None:
    state = _state()
    events = _events(state)
    _bytes(5)(state, events)
    _set(10, kind=kind)(state, events)
    if not closed:
        _set(3, event="recovered")(state, events)
    assert _judge(state, events) == set()
