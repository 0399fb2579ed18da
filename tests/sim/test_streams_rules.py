"""The rules of streams themselves: each must object to a history that breaks it, and to nothing else."""

from __future__ import annotations

import pytest

from buckram.core.streams.batch import Record
from buckram.core.streams.head import Head, Segment, Summary, WriterInfo, encode_head
from buckram.core.streams.policy import Policy
from buckram.metadata.layout import Layout
from buckram.seams import KeyValue
from buckram.sim.engine.checkers.facts import Facts as LedgerFacts
from buckram.sim.engine.checkers.report import Report
from buckram.sim.streams.facts import Content, Facts, Line, Reading, Session
from buckram.sim.streams.finals import Finals
from buckram.sim.streams.heads import HeadWatch
from buckram.sim.streams.names import INVARIANTS, SITUATIONS
from buckram.sim.streams.rules import Rules

KEY = "/buckram/streams/heads/default/one"


class Court:
    """Facts and rules without a world."""

    def __init__(self) -> None:
        self.report = Report(lambda: 0.0)
        self.report.evaluated |= dict.fromkeys(INVARIANTS, 0)
        self.report.reached |= dict.fromkeys(SITUATIONS, 0)
        self.facts, self.ledgers = Facts(), LedgerFacts()
        self.rules = Rules(self.facts, self.report, lambda: 0.0)
        self.allowed = False
        self.watch = HeadWatch(self.facts, self.ledgers, self.report, Layout(), Policy(), lambda *_: self.allowed)
        self.version = -1
        self.head = Head("u1", 0)
        self.change(self.head)

    def change(self, head: Head, who: str = "w1") -> None:
        old = KeyValue(encode_head(self.head), self.version) if self.version >= 0 else None
        self.version += 1
        self.head = head
        self.watch.key_changed(who, KEY, old, KeyValue(encode_head(head), self.version))

    @property
    def line(self) -> Line:
        return self.facts.lines["u1"]

    def ledger(self, ledger: int, state: str = "made") -> None:
        self.facts.owned[ledger] = "u1"
        self.facts.intents["u1", ledger] = state

    def open_row(self, epoch: int = 1, ledger: int = 7) -> None:
        """A writer of this epoch has an open segment from offset 0."""
        self.ledger(ledger)
        self.change(Head("u1", 0, epoch, WriterInfo("w", "n", 0), tail=(Segment(0, ledger, 0, 0),), next_number=1))

    def session(self, epoch: int = 1, first: int = 0, host: str = "w1") -> Session:
        session = self.rules.session(host)
        self.rules.opened(session, "u1", epoch, first)
        return session

    def ack(self, session: Session, ident: str, offset: int, *, at: int | None = None, **content: object) -> None:
        sent = self.facts.submit(session, [ident], [Content(f"{ident}|".encode(), **content)])[0]  # type: ignore[arg-type]
        if at is not None:
            sent.at = at
        self.rules.stored(sent, offset)

    def reading(self, position: int = 0, *, skip: bool = False) -> Reading:
        reading = self.rules.reading("r1", "earliest", follow=False, skip=skip)
        self.rules.began(reading, "u1", position)
        return reading

    def read(self, reading: Reading, offset: int, ident: str, time: int = 5, **more: object) -> None:
        record = Record(offset, f"{ident}|".encode(), None, (), time, time, None)
        self.rules.read(reading, [record._replace(**more)])  # type: ignore[arg-type]  # fields of a record

    @property
    def broken(self) -> list[str]:
        return list(dict.fromkeys(violation.invariant for violation in self.report.violations))


@pytest.fixture
def court() -> Court:
    return Court()


def sealed(number: int, ledger: int, base: int, records: int) -> Segment:
    return Segment(number, ledger, base, 0, Summary(records, records, 10 * records, 1, 2, 0, 0, 0, -1))


def test_a_sound_history_is_sound(court: Court) -> None:
    court.open_row()
    session = court.session()
    for offset, ident in enumerate(("a", "b", "c")):
        court.ack(session, ident, offset)
    reading = court.reading()
    for offset, ident in enumerate(("a", "b", "c")):
        court.read(reading, offset, ident)
    court.line.final, court.line.final_earliest = {0: "a", 1: "b", 2: "c"}, 0
    Finals(court.facts, court.report)._durable(court.line)
    assert court.broken == []
    assert court.report.evaluated["durable"] >= 3


def test_a_record_that_is_left_out_or_comes_twice(court: Court) -> None:
    court.open_row()
    session = court.session()
    for offset, ident in enumerate(("a", "b", "c")):
        court.ack(session, ident, offset)
    reading = court.reading()
    court.read(reading, 0, "a")
    court.read(reading, 2, "c")
    assert court.broken == ["exactly-once"]


def test_a_jump_is_fine_over_what_was_truncated_only(court: Court) -> None:
    court.open_row()
    session = court.session()
    for offset in range(6):
        court.ack(session, f"s{offset}", offset)
    court.line.earliests[4] = None
    reading = court.reading(skip=True)
    court.read(reading, 4, "s4")
    assert court.broken == []
    court.read(court.reading(skip=True), 3, "s3")
    assert court.broken == ["exactly-once"]


def test_what_nobody_appended(court: Court) -> None:
    court.open_row()
    court.read(court.reading(), 0, "stranger")
    assert court.broken == ["authentic"]


def test_a_record_that_changed(court: Court) -> None:
    court.open_row()
    court.ack(court.session(), "a", 0, headers=(("h", b"1"),))
    court.read(court.reading(), 0, "a")
    assert court.broken == ["authentic"]


def test_a_refused_record_that_is_there(court: Court) -> None:
    court.open_row()
    sent = court.facts.submit(court.session(), ["a"], [Content(b"a|")])
    court.rules.refused(sent)
    court.read(court.reading(), 0, "a")
    assert court.broken == ["authentic"]


def test_two_records_at_one_offset_and_one_record_at_two(court: Court) -> None:
    court.open_row()
    session = court.session()
    court.ack(session, "a", 0)
    court.ack(session, "b", 0)
    assert court.broken == ["stable"]
    other = Court()
    other.open_row()
    session = other.session()
    other.ack(session, "Px#0", 0)
    other.ack(session, "Px#0", 1)
    assert other.broken == ["idempotent"]


def test_an_acknowledgement_without_a_row(court: Court) -> None:
    court.ack(court.session(epoch=0), "a", 0)
    assert court.broken == ["M9"]


def test_an_old_writer_is_acknowledged_after_the_seal(court: Court) -> None:
    court.open_row(epoch=1)
    old = court.session(epoch=1)
    court.ledgers.ledger(7).closed = (3, 30)
    court.change(Head("u1", 0, 2, WriterInfo("x", "m", 0), tail=(sealed(0, 7, 0, 3),), end=3, next_number=1))
    court.ack(old, "late", 2, at=0)  # appended before, told after: fine
    assert court.broken == []
    court.ack(old, "later", 3)
    assert "fence" in court.broken


def test_a_new_writer_that_begins_too_low(court: Court) -> None:
    court.open_row()
    court.ack(court.session(), "a", 0)
    court.session(epoch=1, first=0)
    assert court.broken == ["takeover"]


def test_a_writer_that_is_lost_without_a_reason(court: Court) -> None:
    from buckram.errors import WriterLost

    court.open_row()
    session = court.session()
    court.rules.lost(session, WriterLost("default/one", "writer 'x' took the lease"))
    assert court.broken == []
    court.rules.lost(session, WriterLost("default/one", "fenced"))
    assert court.broken == ["undisturbed"]


def test_a_writer_that_fails_because_of_a_janitor(court: Court) -> None:
    from buckram.errors import WriterFailed

    court.open_row()
    session = court.session()
    error = WriterFailed("default/one", "its prepared ledger 3 was discarded by a janitor, which took it for dead")
    court.rules.failed(session, error, healthy=False)
    court.rules.failed(session, WriterFailed("default/one", "the metadata store was away"), healthy=True)
    assert court.broken == []
    court.rules.failed(session, error, healthy=True)
    assert court.broken == ["undisturbed"]


def test_append_times_that_go_back_or_differ(court: Court) -> None:
    court.open_row()
    session = court.session()
    court.ack(session, "a", 0)
    court.ack(session, "b", 1)
    reading = court.reading()
    court.read(reading, 0, "a", 9)
    court.read(reading, 1, "b", 8)
    assert court.broken == ["append-time"]
    other = Court()
    other.open_row()
    other.ack(other.session(), "a", 0)
    other.read(other.reading(), 0, "a", 9)
    other.read(other.reading(), 0, "a", 8)
    assert other.broken == ["append-time"]


@pytest.mark.parametrize(("what", "head"), [
    ("epoch", Head("u1", 0, 0)), ("earliest", Head("u1", 0, 3, earliest=1)), ("uid", Head("u2", 0, 3, earliest=2)),
    ("live", Head("u1", 0, 3, earliest=2, deleting=False)),
])  # fmt: skip
def test_a_head_that_goes_back(court: Court, what: str, head: Head) -> None:
    court.allowed = True
    court.change(Head("u1", 0, 3, earliest=2, deleting=what == "live"))
    assert court.broken == []
    court.change(head)
    assert "head" in court.broken


def test_rows_with_a_gap_or_two_open_ones(court: Court) -> None:
    for ledger in (7, 8):
        court.ledger(ledger)
        court.ledgers.ledger(ledger).closed = (3, 30)
    gap = (sealed(0, 7, 0, 3), Segment(1, 8, 4, 0))
    court.change(Head("u1", 0, 1, tail=gap, end=4, next_number=2))
    assert "M9" in court.broken
    other = Court()
    for ledger in (7, 8):
        other.ledger(ledger)
    two = (Segment(0, 7, 0, 0), Segment(1, 8, 0, 0))
    other.change(Head("u1", 0, 1, tail=two, next_number=2))
    assert "M9" in other.broken


def test_a_ledger_without_an_intent_is_listed(court: Court) -> None:
    court.facts.owned[7] = "u1"
    court.change(Head("u1", 0, 1, tail=(Segment(0, 7, 0, 0),), next_number=1))
    assert court.broken == ["M9"]


def test_a_row_that_says_something_else_than_its_ledger(court: Court) -> None:
    court.open_row()
    court.ledgers.ledger(7).closed = (2, 30)
    court.change(Head("u1", 0, 1, tail=(sealed(0, 7, 0, 3),), end=3, next_number=1))
    assert court.broken == ["sealed-row"]


def test_a_truncation_that_nobody_asked_for(court: Court) -> None:
    court.line.asked[2] = None
    court.change(Head("u1", 0, earliest=2, end=5))
    assert court.broken == []
    court.change(Head("u1", 0, earliest=3, end=5))
    assert court.broken == ["truncation"]


def test_a_ledger_that_is_needed_is_deleted(court: Court) -> None:
    court.open_row()
    court.watch._deleted("j1", "u1", 7)
    assert court.broken == ["kept"]


def test_a_prepared_ledger_is_deleted_without_a_claim(court: Court) -> None:
    court.ledger(9)
    court.watch._deleted("j1", "u1", 9)
    assert court.broken == ["kept"]
    other = Court()
    other.ledger(9, "discard")
    other.watch._deleted("j1", "u1", 9)
    assert other.broken == []


def test_a_cursor_that_goes_back(court: Court) -> None:
    key = "/buckram/streams/data/u1/cursors/c"
    for version, offset in enumerate((3, 5, 4)):
        court.watch.key_changed("r1", key, None, KeyValue(b'{"offset": %d}' % offset, version))
    assert court.broken == ["cursor"]


def finals(court: Court, final: dict[int, str], earliest: int = 0) -> list[str]:
    line = court.line
    line.final, line.final_earliest = final, earliest
    line.head = Head("u1", 0, earliest=earliest, end=max(final, default=earliest - 1) + 1)
    Finals(court.facts, court.report).judge()
    return court.broken


def test_an_acknowledged_record_that_is_gone(court: Court) -> None:
    court.open_row()
    court.ack(court.session(), "a", 0)
    assert finals(court, {0: "b"}) == ["durable"]


def test_truncated_records_are_not_missed(court: Court) -> None:
    court.open_row()
    court.ack(court.session(), "a", 0)
    court.ack(court.session(first=1), "b", 1)
    assert finals(court, {1: "b"}, earliest=1) == []


def test_records_of_a_writer_in_another_order(court: Court) -> None:
    court.open_row()
    session = court.session()
    first, second = court.facts.submit(session, ["a", "b"], [Content(b"a|"), Content(b"b|")])
    court.rules.stored(second, 0)
    court.rules.stored(first, 1)
    assert finals(court, {0: "b", 1: "a"}) == ["call-order"]


@pytest.mark.parametrize(("there", "expected"), [
    ({}, []), ({0: "a", 1: "b", 2: "c"}, []), ({0: "a", 1: "b"}, ["atomic"]),
])  # fmt: skip
def test_an_atomic_batch_in_part(court: Court, there: dict[int, str], expected: list[str]) -> None:
    court.open_row()
    session = court.session()
    court.rules.group(session, ["a", "b", "c"])
    for ident in ("a", "b", "c"):
        court.facts.submit(session, [ident], [Content(f"{ident}|".encode())])
    reading = court.reading()
    for offset, ident in there.items():
        court.read(reading, offset, ident)
    assert finals(court, there) == expected


def test_txids_that_go_back(court: Court) -> None:
    court.open_row()
    session = court.session()
    court.ack(session, "a", 0, txid=5)
    court.ack(session, "b", 1, txid=4)
    assert finals(court, {0: "a", 1: "b"}) == ["txid"]
