"""Tests of the rules of streams: each must be violated by a history that breaks it, and by no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from buckram.core.streams.metadata.head import Head, Segment, Summary, WriterInfo, encode_head
from buckram.core.streams.policy import Policy
from buckram.core.streams.records.batch import Record
from buckram.metadata.tree.layout import Layout
from buckram.types import KeyValue
from simulator.engine.checkers.facts import Facts as LedgerFacts
from simulator.engine.checkers.report import Report
from simulator.streams.facts import Content, Facts, ReaderSession, StreamHistory, WriterSession
from simulator.streams.final_checks import FinalChecks
from simulator.streams.heads import HeadWatch
from simulator.streams.names import INVARIANTS, SITUATIONS
from simulator.streams.rules import Rules

KEY = "/buckram/streams/heads/default/one"


class RuleHarness:
    """Facts and rules without a simulated world. Each method is an event."""

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
    def history(self) -> StreamHistory:
        return self.facts.histories["u1"]

    def hold(self, uid: str, ledger: int) -> None:
        """A stream takes hold of a ledger that several share."""
        self.watch.key_changed("k1", f"{Layout().ledger(ledger)}/{uid}", None, KeyValue(b"", 0))

    def let_go(self, uid: str, ledger: int) -> None:
        self.watch.key_changed("k1", f"{Layout().ledger(ledger)}/{uid}", KeyValue(b"", 0), None)

    def ledger(self, ledger: int, state: str = "made") -> None:
        self.facts.owned[ledger] = "u1"
        self.facts.intents["u1", ledger] = state

    def list_open_segment(self, epoch: int = 1, ledger: int = 7) -> None:
        """A writer of this epoch lists an open segment from offset 0."""
        self.ledger(ledger)
        self.change(Head("u1", 0, epoch, WriterInfo("w", "n", 0), tail=(Segment(0, ledger, 0, 0),), next_number=1))

    def session(self, epoch: int = 1, first: int = 0, host: str = "w1") -> WriterSession:
        session = self.rules.new_session(host)
        self.rules.writer_opened(session, "u1", epoch, first)
        return session

    def ack(self, session: WriterSession, ident: str, offset: int, *, at: int | None = None, **content: object) -> None:
        sent = self.facts.submit(session, [ident], [Content(f"{ident}|".encode(), **content)])[0]  # type: ignore[arg-type]
        if at is not None:
            sent.at = at
        self.rules.acknowledged(sent, offset)

    def reading(self, position: int = 0, *, skip: bool = False) -> ReaderSession:
        reading = self.rules.new_reader("r1", "earliest", follow=False, skip=skip)
        self.rules.reader_opened(reading, "u1", position)
        return reading

    def read(self, reading: ReaderSession, offset: int, ident: str, time: int = 5, **more: object) -> None:
        record = Record(offset, f"{ident}|".encode(), None, (), time, time, None)
        self.rules.records_read(reading, [record._replace(**more)])  # type: ignore[arg-type]  # fields of a record

    @property
    def broken(self) -> list[str]:
        return list(dict.fromkeys(violation.invariant for violation in self.report.violations))


@pytest.fixture
def harness() -> RuleHarness:
    return RuleHarness()


def sealed(number: int, ledger: int, base: int, records: int) -> Segment:
    return Segment(number, ledger, base, 0, Summary(records, records, 10 * records, 1, 2, 0, 0, 0, -1))


def test_correct_history_violates_nothing(harness: RuleHarness) -> None:
    harness.list_open_segment()
    session = harness.session()
    for offset, ident in enumerate(("a", "b", "c")):
        harness.ack(session, ident, offset)
    reading = harness.reading()
    for offset, ident in enumerate(("a", "b", "c")):
        harness.read(reading, offset, ident)
    harness.history.final, harness.history.final_earliest = {0: "a", 1: "b", 2: "c"}, 0
    FinalChecks(harness.facts, harness.report)._check_durable(harness.history)
    assert harness.broken == []
    assert harness.report.evaluated["durable"] >= 3


def test_skipped_record_violates_exactly_once(harness: RuleHarness) -> None:
    harness.list_open_segment()
    session = harness.session()
    for offset, ident in enumerate(("a", "b", "c")):
        harness.ack(session, ident, offset)
    reading = harness.reading()
    harness.read(reading, 0, "a")
    harness.read(reading, 2, "c")
    assert harness.broken == ["exactly-once"]


def test_reader_may_skip_truncated_records_only(harness: RuleHarness) -> None:
    harness.list_open_segment()
    session = harness.session()
    for offset in range(6):
        harness.ack(session, f"s{offset}", offset)
    harness.history.earliest_offsets[4] = None
    reading = harness.reading(skip=True)
    harness.read(reading, 4, "s4")
    assert harness.broken == []
    harness.read(harness.reading(skip=True), 3, "s3")
    assert harness.broken == ["exactly-once"]


def test_unknown_record_violates_authentic(harness: RuleHarness) -> None:
    harness.list_open_segment()
    harness.read(harness.reading(), 0, "stranger")
    assert harness.broken == ["authentic"]


def test_changed_record_violates_authentic(harness: RuleHarness) -> None:
    harness.list_open_segment()
    harness.ack(harness.session(), "a", 0, headers=(("h", b"1"),))
    harness.read(harness.reading(), 0, "a")
    assert harness.broken == ["authentic"]


def test_refused_record_that_is_read_violates_authentic(harness: RuleHarness) -> None:
    harness.list_open_segment()
    sent = harness.facts.submit(harness.session(), ["a"], [Content(b"a|")])
    harness.rules.refused(sent)
    harness.read(harness.reading(), 0, "a")
    assert harness.broken == ["authentic"]


def test_offset_with_two_records_and_record_with_two_offsets(harness: RuleHarness) -> None:
    harness.list_open_segment()
    session = harness.session()
    harness.ack(session, "a", 0)
    harness.ack(session, "b", 0)
    assert harness.broken == ["stable"]
    other = RuleHarness()
    other.list_open_segment()
    session = other.session()
    other.ack(session, "Px#0", 0)
    other.ack(session, "Px#0", 1)
    assert other.broken == ["idempotent"]


def test_acknowledgement_without_a_segment_violates_m9(harness: RuleHarness) -> None:
    harness.ack(harness.session(epoch=0), "a", 0)
    assert harness.broken == ["M9"]


def test_acknowledgement_of_an_old_writer_after_the_seal(harness: RuleHarness) -> None:
    harness.list_open_segment(epoch=1)
    old = harness.session(epoch=1)
    harness.ledgers.ledger(7).closed = (3, 30)
    harness.change(Head("u1", 0, 2, WriterInfo("x", "m", 0), tail=(sealed(0, 7, 0, 3),), end=3, next_number=1))
    harness.ack(old, "late", 2, at=0)  # it was appended before the seal, so this is correct
    assert harness.broken == []
    harness.ack(old, "later", 3)
    assert "fence" in harness.broken


def test_new_writer_that_begins_below_an_acknowledged_offset(harness: RuleHarness) -> None:
    harness.list_open_segment()
    harness.ack(harness.session(), "a", 0)
    harness.session(epoch=1, first=0)
    assert harness.broken == ["takeover"]


def test_writer_lost_without_a_reason_violates_undisturbed(harness: RuleHarness) -> None:
    from buckram.errors import WriterLost

    harness.list_open_segment()
    session = harness.session()
    harness.rules.writer_lost(session, WriterLost("default/one", "writer 'x' took the lease"))
    assert harness.broken == []
    harness.rules.writer_lost(session, WriterLost("default/one", "fenced"))
    assert harness.broken == ["undisturbed"]


def test_healthy_writer_failed_by_a_janitor(harness: RuleHarness) -> None:
    from buckram.errors import WriterFailed

    harness.list_open_segment()
    session = harness.session()
    error = WriterFailed("default/one", "its prepared ledger 3 was discarded by a janitor, which took it for dead")
    harness.rules.writer_failed(session, error, healthy=False)
    harness.rules.writer_failed(session, WriterFailed("default/one", "the metadata store was away"), healthy=True)
    assert harness.broken == []
    harness.rules.writer_failed(session, error, healthy=True)
    assert harness.broken == ["undisturbed"]


def test_append_times_that_decrease_or_differ(harness: RuleHarness) -> None:
    harness.list_open_segment()
    session = harness.session()
    harness.ack(session, "a", 0)
    harness.ack(session, "b", 1)
    reading = harness.reading()
    harness.read(reading, 0, "a", 9)
    harness.read(reading, 1, "b", 8)
    assert harness.broken == ["append-time"]
    other = RuleHarness()
    other.list_open_segment()
    other.ack(other.session(), "a", 0)
    other.read(other.reading(), 0, "a", 9)
    other.read(other.reading(), 0, "a", 8)
    assert other.broken == ["append-time"]


@pytest.mark.parametrize(("what", "head"), [
    ("epoch", Head("u1", 0, 0)), ("earliest", Head("u1", 0, 3, earliest=1)), ("uid", Head("u2", 0, 3, earliest=2)),
    ("live", Head("u1", 0, 3, earliest=2, deleting=False)),
])  # fmt: skip
def test_head_that_goes_back(harness: RuleHarness, what: str, head: Head) -> None:
    harness.allowed = True
    harness.change(Head("u1", 0, 3, earliest=2, deleting=what == "live"))
    assert harness.broken == []
    harness.change(head)
    assert "head" in harness.broken


def test_segments_with_a_gap_and_two_open_segments(harness: RuleHarness) -> None:
    for ledger in (7, 8):
        harness.ledger(ledger)
        harness.ledgers.ledger(ledger).closed = (3, 30)
    gap = (sealed(0, 7, 0, 3), Segment(1, 8, 4, 0))
    harness.change(Head("u1", 0, 1, tail=gap, end=4, next_number=2))
    assert "M9" in harness.broken
    other = RuleHarness()
    for ledger in (7, 8):
        other.ledger(ledger)
    two = (Segment(0, 7, 0, 0), Segment(1, 8, 0, 0))
    other.change(Head("u1", 0, 1, tail=two, next_number=2))
    assert "M9" in other.broken


def test_listed_ledger_without_an_intent_violates_m9(harness: RuleHarness) -> None:
    harness.facts.owned[7] = "u1"
    harness.change(Head("u1", 0, 1, tail=(Segment(0, 7, 0, 0),), next_number=1))
    assert harness.broken == ["M9"]


def test_segment_that_differs_from_its_ledger(harness: RuleHarness) -> None:
    harness.list_open_segment()
    harness.ledgers.ledger(7).closed = (2, 30)
    harness.change(Head("u1", 0, 1, tail=(sealed(0, 7, 0, 3),), end=3, next_number=1))
    assert harness.broken == ["sealed-row"]


@pytest.mark.parametrize(("last", "expected"), [("u1", ["orphans"]), ("u2", [])])
def test_whoever_lets_a_shared_ledger_go_last_deletes_it(harness: RuleHarness, last: str, expected: list[str]) -> None:
    harness.list_open_segment()
    row = sealed(0, 7, 0, 5)
    assert row.summary is not None
    harness.ledgers.ledger(7).closed = (row.summary.last_entry, row.summary.bytes)
    harness.allowed = True
    head = Head("u1", 0, 1, tail=(row,), end=5, next_number=1)
    harness.change(head)
    harness.change(replace(head, earliest=5))
    for uid in ("u1", "u2"):
        harness.hold(uid, 7)
    for uid in sorted(("u1", "u2"), key=lambda uid: uid == last):
        harness.let_go(uid, 7)
    harness.change(replace(head, earliest=5, first=1, tail=()), "t1")
    assert harness.broken == expected


def test_truncation_that_nobody_requested(harness: RuleHarness) -> None:
    harness.history.requested_truncations[2] = None
    harness.change(Head("u1", 0, earliest=2, end=5))
    assert harness.broken == []
    harness.change(Head("u1", 0, earliest=3, end=5))
    assert harness.broken == ["truncation"]


def test_deleting_a_listed_ledger_violates_kept(harness: RuleHarness) -> None:
    harness.list_open_segment()
    harness.watch._ledger_changed("j1", 7, None)
    assert harness.broken == ["kept"]


def test_deleting_a_prepared_ledger_without_a_discard_mark(harness: RuleHarness) -> None:
    harness.ledger(9)
    harness.watch._ledger_changed("j1", 9, None)
    assert harness.broken == ["kept"]
    other = RuleHarness()
    other.ledger(9, "discard")
    other.watch._ledger_changed("j1", 9, None)
    assert other.broken == []


def test_cursor_that_goes_back(harness: RuleHarness) -> None:
    key = "/buckram/streams/data/u1/cursors/c"
    for version, offset in enumerate((3, 5, 4)):
        harness.watch.key_changed("r1", key, None, KeyValue(b'{"offset": %d}' % offset, version))
    assert harness.broken == ["cursor"]


def violations_at_the_end(harness: RuleHarness, final: dict[int, str], earliest: int = 0) -> list[str]:
    history = harness.history
    history.final, history.final_earliest = final, earliest
    history.head = Head("u1", 0, earliest=earliest, end=max(final, default=earliest - 1) + 1)
    FinalChecks(harness.facts, harness.report).run()
    return harness.broken


def test_missing_acknowledged_record_violates_durable(harness: RuleHarness) -> None:
    harness.list_open_segment()
    harness.ack(harness.session(), "a", 0)
    assert violations_at_the_end(harness, {0: "b"}) == ["durable"]


def test_truncated_records_are_not_missing(harness: RuleHarness) -> None:
    harness.list_open_segment()
    harness.ack(harness.session(), "a", 0)
    harness.ack(harness.session(first=1), "b", 1)
    assert violations_at_the_end(harness, {1: "b"}, earliest=1) == []


def test_records_out_of_call_order(harness: RuleHarness) -> None:
    harness.list_open_segment()
    session = harness.session()
    first, second = harness.facts.submit(session, ["a", "b"], [Content(b"a|"), Content(b"b|")])
    harness.rules.acknowledged(second, 0)
    harness.rules.acknowledged(first, 1)
    assert violations_at_the_end(harness, {0: "b", 1: "a"}) == ["call-order"]


@pytest.mark.parametrize(("there", "expected"), [
    ({}, []), ({0: "a", 1: "b", 2: "c"}, []), ({0: "a", 1: "b"}, ["atomic"]),
])  # fmt: skip
def test_atomic_batch_stored_in_part(harness: RuleHarness, there: dict[int, str], expected: list[str]) -> None:
    harness.list_open_segment()
    session = harness.session()
    harness.rules.atomic_append(session, ["a", "b", "c"])
    for ident in ("a", "b", "c"):
        harness.facts.submit(session, [ident], [Content(f"{ident}|".encode())])
    reading = harness.reading()
    for offset, ident in there.items():
        harness.read(reading, offset, ident)
    assert violations_at_the_end(harness, there) == expected


def test_txids_that_decrease(harness: RuleHarness) -> None:
    harness.list_open_segment()
    session = harness.session()
    harness.ack(session, "a", 0, txid=5)
    harness.ack(session, "b", 1, txid=4)
    assert violations_at_the_end(harness, {0: "a", 1: "b"}) == ["txid"]
