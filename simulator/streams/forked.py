"""The invariants of forks, and of ledgers that streams share, in a life.

Not here: the actor that forks (`forking.py`).
"""

from __future__ import annotations

from buckram.core.streams.metadata.head import Head
from buckram.types import KeyValue, LedgerId
from simulator.engine.checkers.report import Report
from simulator.streams.facts import Facts, StreamHistory


def live_forks(facts: Facts) -> list[StreamHistory]:
    """Return the forks that are complete and not deleted."""
    return [
        history
        for history in facts.current.values()
        if history.source is not None and not history.head_removed and history.head and not history.head.deleting
    ]


def note_forked(facts: Facts, report: Report, who: str, history: StreamHistory, head: Head) -> None:
    """Check a completed fork and note its records: those of its source below the offset."""
    assert head.fork is not None
    source, at = facts.histories[head.fork.uid], head.fork.at
    history.source, history.at = source, at
    history.earliest_offsets[head.earliest] = None
    report.check(
        "forked",
        head.end == at and head.earliest in source.earliest_offsets and head.earliest <= at,
        "{} forks {} at {}: the fork has {} to {}",
        who,
        source.name,
        at,
        head.earliest,
        head.end,
    )
    report.situation("stream forked")
    for offset, seen in source.known_records.items():
        if head.earliest <= offset < at:
            history.known_records[offset] = seen
            history.offset_of.setdefault(seen.ident, offset)
    history.acked |= {offset: sent for offset, sent in source.acked.items() if head.earliest <= offset < at}


def check_fork(report: Report, history: StreamHistory) -> None:
    """Check at the end of a life that a fork has the records of its source below its offset, and none of them above."""
    if history.source is None or history.final is None:
        return
    for offset, ident in history.final.items():
        known = history.source.known_records.get(offset)
        if known is not None:
            report.check(
                "forked",
                (known.ident == ident) == (offset < history.at),
                "fork {} of {} at {} has {} at offset {}, the source has {}",
                history.name,
                history.source.name,
                history.at,
                ident,
                offset,
                known.ident,
            )


def share_changed(facts: Facts, report: Report, uid: str, ledger: LedgerId, new: KeyValue | None) -> None:
    """Note that a stream takes hold of a ledger, or lets it go (`new` None)."""
    holders = facts.shared.setdefault(ledger, {})
    if new is not None:
        holders[uid] = None
        facts.left_to_others.pop((uid, ledger), None)
    else:
        holders.pop(uid, None)
        facts.left_to_others[uid, ledger] = bool(holders)
        report.situation("shared ledger let go")


def check_deletion(facts: Facts, report: Report, who: str, history: StreamHistory, ledger: LedgerId) -> None:
    """Check that a stream does not need the ledger."""
    state, was_shared = facts.intents.get((history.uid, ledger)), ledger in facts.shared
    if history.head_removed or history.head is None or history.head.deleting:
        return
    head, row = history.head, history.listed.get(ledger)
    if ledger in history.retired:
        allowed = state == "discard" or (state is None and was_shared)
        report.situation("compacted segment deleted")
    elif row is None:
        allowed = state in (None, "discard")
        if state == "discard":
            report.situation("unlisted entries discarded")
    else:
        dead = row.sealed and row.end <= head.earliest and row.number != head.producers
        kept = head.table is not None and head.table.ledger == ledger
        allowed = not kept and (dead or ledger in head.garbage or row.number < head.first)
    report.check(
        "kept",
        allowed,
        "{} deletes ledger {} of {}: row {}, earliest {}, intent {}",
        who,
        ledger,
        history.name,
        row,
        head.earliest,
        state,
    )


__all__ = ["check_deletion", "check_fork", "live_forks", "note_forked", "share_changed"]
