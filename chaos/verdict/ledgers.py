"""Histories of ledgers against the state at the end: rules S1 to S20, M1, M3, M5 and M10. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from buckram.types import LedgerId
from chaos.actors.ledgers import DEFERRED, EXPLICIT, PLACED, PLAIN
from chaos.history import Event
from chaos.plan import ONE_RACK
from chaos.verdict.copies import Copies
from chaos.verdict.report import Report
from chaos.verdict.state import LedgerState, State

_MARGIN_S = 0.5
"""Tolerance in seconds: a fault is recorded when it has begun, and ends no earlier than its planned time after that,
less this tolerance."""


@dataclass
class Told:
    """Events that actors recorded about a ledger, each list in the order of time."""

    created: list[Event] = field(default_factory=list)
    acked: list[Event] = field(default_factory=list)
    sent: list[Event] = field(default_factory=list)
    ends: list[Event] = field(default_factory=list)
    """Closed or recovered: the last entry and the length that its handle reported."""
    failed: list[Event] = field(default_factory=list)
    reads: list[Event] = field(default_factory=list)
    explicit: list[Event] = field(default_factory=list)
    deletes: list[Event] = field(default_factory=list)
    deleted: list[Event] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.created[0]["kind"] if self.created else ""

    @property
    def sums_up(self) -> bool:
        """Return whether the length is the sum of payloads. If ids come in any order, or not all became durable, it
        does not follow from the last entry, and a recovery cannot know it."""
        return self.kind in (PLAIN, PLACED) or (
            self.kind == EXPLICIT and any(one["event"] == "closed" for one in self.ends)
        )


_LISTS = {
    "created": "created",
    "acked": "acked",
    "sent": "sent",
    "closed": "ends",
    "recovered": "ends",
    "failed": "failed",
    "read": "reads",
    "explicit": "explicit",
    "deletes": "deletes",
    "deleted": "deleted",
}


def judge_ledgers(events: Sequence[Event], state: State, report: Report) -> None:
    told: dict[LedgerId, Told] = defaultdict(Told)
    for event in events:
        if (name := _LISTS.get(event["event"])) is not None and "ledger" in event:
            getattr(told[event["ledger"]], name).append(event)
        if event["event"] == "error":
            report.check("S18", event["what"] != "NoSuchEntry", f"{event['actor']}: {event['text']}")
    report.check("S18", True, "")
    alone = [event for event in events if event["event"] == "fault" and event["fault"] == ONE_RACK]
    for ledger, said in sorted(told.items()):
        _judge_handles(ledger, said, report)
        _judge_kinds(ledger, said, report)
        if said.kind == PLACED:
            _judge_domains(ledger, said, alone, report)
        found = state.ledgers.get(ledger)
        if found is not None:
            _judge_end(ledger, said, found, report)
        else:
            report.check("S3", bool(said.deletes) or not said.acked, f"ledger {ledger} is gone and nobody deleted it")


def _judge_handles(ledger: LedgerId, said: Told, report: Report) -> None:
    following, failed_at = 0, min((event["at"] for event in said.failed), default=float("inf"))
    for event in said.acked:
        report.check("S8", event["first"] == following, f"ledger {ledger}: {event['first']} acked, not {following}")
        report.check("S8", event["at"] <= failed_at, f"ledger {ledger}: {event['first']} acked after a failure")
        report.check("S20", event["as_sent"], f"ledger {ledger}: {event['first']} to {event['last']} was not sent so")
        following = event["last"] + 1
    ends = {(event["last"], event["length"]) for event in said.ends}
    if said.ends:
        report.check("S2", len(ends) == 1, f"ledger {ledger}: reported ends (last entry, length) {sorted(ends)}")
    for event in said.reads:
        report.check("S14", not event["wrong"], f"ledger {ledger}: {event['actor']} read {event['wrong']}")
        report.check("S12", not event["fell"], f"ledger {ledger}: {event['actor']} saw the LAC sink")
        report.check("S16", not event["beyond"], f"ledger {ledger}: {event['actor']} read beyond the LAC")
    if said.deleted:
        after = [event["last"] for event in said.acked if event["at"] > said.deleted[0]["at"]]
        # An acknowledgement is recorded a moment after it came; what was in flight then was sent before the deletion.
        sent = max((event["last"] for event in said.sent if event["at"] <= said.deletes[0]["at"]), default=-1)
        report.check("M10", all(last <= sent for last in after), f"ledger {ledger}: {after} acked after its deletion")


def _judge_kinds(ledger: LedgerId, said: Told, report: Report) -> None:
    for event in said.explicit:
        report.check("M1", event["in_order"], f"ledger {ledger}: ids from {event['first']} on were acked out of order")
        report.check("M1", event["refused"], f"ledger {ledger}: an id after {event['first']} was taken twice")
    for event in said.ends:
        if event.get("kind") == DEFERRED:
            changed = f"ledger {ledger}: {event['fragments']} fragments under deferred sync"
            report.check("M3", event["fragments"] == 1, changed)


def _judge_domains(ledger: LedgerId, said: Told, alone: Sequence[Event], report: Report) -> None:
    """Check that entries sent while all racks but one were paused were not acknowledged before the fault's planned
    end."""
    for fault in alone:
        begin, end = fault["at"], fault["at"] + fault["seconds"] - _MARGIN_S
        before = max((event["last"] for event in said.sent if event["at"] <= begin), default=-1)
        during = max((event["last"] for event in said.sent if event["at"] < end), default=-1)
        acked = max((event["last"] for event in said.acked if begin < event["at"] < end), default=-1)
        if during > before:
            text = f"ledger {ledger}: entry {acked}, sent while one rack was left, was acknowledged then"
            report.check("M5", acked <= before, text)


def _judge_end(ledger: LedgerId, said: Told, found: LedgerState, report: Report) -> None:
    name = f"ledger {ledger}"
    acked = max((event["last"] for event in said.acked), default=-1)
    sent = max((event["last"] for event in said.sent), default=-1)
    report.check("S1", acked <= found.last, f"{name}: {acked} was acknowledged, it ends at {found.last}")
    complete = found.entries == found.last + 1
    report.check("S19", complete, f"{name}: {found.entries} entries were read, the last one is {found.last}")
    if said.acked:
        # Every second bookie loses what it did not sync whenever it is killed.
        durable = "M2" if said.kind == DEFERRED else "M4"
        there = acked < found.entries and not found.wrong
        report.check(durable, there, f"{name}: {acked} was durable, {found.entries} entries are there {found.wrong}")
    report.check("S9", found.last <= sent, f"{name}: it ends at {found.last}, only {sent} was sent")
    for event in said.ends:
        said_end = (event["last"], event["length"])
        report.check("S2", said_end == (found.last, found.length), f"{name}: {event['actor']} reported {said_end}")
    for wrong in found.wrong or [""]:
        report.check("S6", not wrong, f"{name}: {wrong}")
        report.check("S3", not wrong or acked < 0, f"{name}: {wrong}; {acked} was acknowledged")
    if said.sums_up:
        text = f"{name}: its payloads have {found.total} bytes, its metadata says {found.length}"
        report.check("S13", found.total == found.length, text)
    for event in said.reads:
        who = event["actor"]
        report.check("S14", event["last"] <= found.last, f"{name}: {who} read {event['last']}, it ends at {found.last}")
        report.check("S12", event["lac"] <= found.last, f"{name}: {who} saw LAC {event['lac']}, end {found.last}")
        complete = not event["ended"] or event["last"] == found.last
        report.check("S14", complete, f"{name}: {who} was told the end at {event['last']}, it is {found.last}")
    firsts = [fragment.first_entry for fragment in found.metadata.fragments]
    distinct = all(len(set(one.ensemble)) == len(one.ensemble) for one in found.metadata.fragments)
    ordered = firsts[:1] == [0] and all(a < b for a, b in pairwise(firsts))
    report.check("S10", ordered and distinct, f"{name}: fragments {found.metadata.fragments}")


def judge_copies(found: Copies, good: int, report: Report) -> None:
    """Check S5 after healing: `found` has the remaining faults, `good` the number of good copies at the first look."""
    report.checks["S5"] += good
    for sentences in found.lacking.values():
        for text in sentences:
            report.check("S5", False, text)
    report.check("S5", not found.open, f"ledgers {found.open[:10]} are not closed after everything was recovered")
