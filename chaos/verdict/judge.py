"""Judgement by all rules: the actors' histories are compared with the state at the end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos.history import Event
from chaos.verdict.bank import judge_bank
from chaos.verdict.copies import Copies
from chaos.verdict.ledgers import judge_copies, judge_ledgers
from chaos.verdict.report import Report
from chaos.verdict.state import State
from chaos.verdict.streams import judge_streams


@dataclass
class End:
    """State of the cluster at the end. `first`: the copies when the last ledger had been recovered; `last`: those still
    lacking after `seconds` of healing."""

    state: State
    first: Copies
    last: Copies = field(default_factory=Copies)
    seconds: float = 0.0
    differing: list[str] = field(default_factory=list)
    """Copies that differ from the written data, of both looks."""


def judge(events: Sequence[Event], end: End, report: Report) -> None:
    """Compare the actors' histories with the state at the end."""
    judge_ledgers(events, end.state, report)
    judge_streams(events, end.state, report)
    judge_bank(events, end.state.database, report)
    judge_copies(end.last, end.first.good, report)
    for text in end.differing or [""]:
        report.check("S7", not text, text)
    for text in end.state.misplaced or [""]:
        report.check("M6", not text, text)
    for event in events:
        if event["event"] == "would-not-end":
            report.check("ends", False, f"{event['who']} had to be killed")
        if event["event"] == "came-back-empty":
            report.check("M8", bool(event["why_not"]), f"{event['bookie']} came back empty and was let in")
            report.check("M7", True, "")  # nothing named it in the end, or the run had not healed
    report.check("ends", True, "")
