"""What must be true of forks in a life of streams. Not here: who makes them (`forking.py`)."""

from __future__ import annotations

from buckram.core.streams.head import Head
from buckram.sim.engine.checkers.report import Report
from buckram.sim.streams.facts import Facts, StreamHistory


def live_forks(facts: Facts) -> list[StreamHistory]:
    """The forks that are complete and not deleted."""
    return [
        history
        for history in facts.current.values()
        if history.source is not None and not history.head_removed and history.head and not history.head.deleting
    ]


def note_forked(facts: Facts, report: Report, who: str, history: StreamHistory, head: Head) -> None:
    """A fork was completed: it has what its source has below the offset."""
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
    """At the end of a life: below its offset a fork has the records of its source, and from there on none of them."""
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


__all__ = ["check_fork", "live_forks", "note_forked"]
