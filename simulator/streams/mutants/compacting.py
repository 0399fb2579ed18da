"""Planted bugs of compaction: the copies, the segments that they replace, and the old ledgers."""

from __future__ import annotations

from typing import Any

from buckram.core.streams import compaction as stream_compaction
from buckram.core.streams.compaction import EntryRewriter
from buckram.core.streams.names import StreamId
from buckram.streams.maintain import compaction
from buckram.streams.shared.ledgers import drop_ledger
from buckram.streams.shared.metadata import StreamStore
from buckram.types import CheckVersion
from simulator.streams.mutants.base import Mutant, plant
from simulator.streams.plan import StreamPlan

_rewrite, _replacement, _replace, _page = (
    EntryRewriter.rewrite,
    stream_compaction.replacement,
    compaction._replace,
    StreamStore.page,
)


def _own_times(self: EntryRewriter, payload: bytes) -> bytes | None:
    """Keep the append time of the writer's clock, which readers clamp to the times of the segment."""
    row = self._row
    assert row is not None
    self._row = row._replace(first_append=0, last_append=2**62)
    try:
        return _rewrite(self, payload)
    finally:
        self._row = row


def _times_unchecked(name: str, run: Any, ledger: int, summary: Any) -> Any:
    rows = [row.summary for row in run.rows]
    fitting = summary._replace(first_append=rows[0].first_append, last_append=rows[-1].last_append)
    return _replacement(name, run, ledger, fitting)


def _last_left_out(self: EntryRewriter, payload: bytes) -> bytes | None:
    """Leave out the last entry of a segment, as if it was a mark."""
    records, row = self.records, self._row
    made = _rewrite(self, payload)
    assert row is not None
    if made is not None and self.records - self._base == row.records and records > self._base:
        self.records = records
        return None
    return made


def _as_announced(name: str, run: Any, ledger: int, summary: Any) -> Any:
    rows = [row.summary for row in run.rows]
    expected = summary._replace(
        records=run.end - run.base,
        first_append=rows[0].first_append,
        last_append=rows[-1].last_append,
        min_timestamp=min(row.min_timestamp for row in rows),
        max_timestamp=max(row.max_timestamp for row in rows),
    )
    return _replacement(name, run, ledger, expected)


def _any_may_move(head: Any, row: Any) -> bool:
    """Allow the segment with the producers' table, too."""
    return bool(row.sealed and row.end > head.earliest)


async def _delete_first(client: Any, streams: Any, work: Any, copied: Any, purpose: str) -> None:
    for row in copied.run.rows:
        await drop_ledger(client, streams, StreamId(None, work.uid), row.ledger)
    await _replace(client, streams, work, copied, purpose)


def _no_intents(streams: Any, uid: str, ledger: int, epoch: int, now: int, purpose: str = "") -> Any:
    """Record nothing for an old ledger. The key that is checked instead always exists and never changes."""
    return CheckVersion(streams.layout.namespace("default"), 0)


async def _pages_for_good(self: StreamStore, head: Any, number: int) -> Any:
    """Read each page only once."""
    known = self._pages.get((head.uid, number))
    return known[0] if known is not None else await _page(self, head, number)


def _compacting(plan: StreamPlan) -> bool:
    return plan.compactor


def _bulk_compacting(plan: StreamPlan) -> bool:
    return plan.compactor and plan.publisher


def _paged_compacting(plan: StreamPlan) -> bool:
    return plan.compactor and plan.small_pages and plan.janitor


MUTANTS = (
    Mutant(
        "compact-own-times",
        "times",
        "a compacted entry has the append time that its writer's clock gave it",
        plant((EntryRewriter, "rewrite", _own_times), (compaction, "replacement", _times_unchecked)),
        lives=_bulk_compacting,
        seeds=200,
    ),
    Mutant(
        "compact-last-entry",
        "10",
        "the last entry of a segment is left out of its copy, and records are not counted",
        plant((EntryRewriter, "rewrite", _last_left_out), (compaction, "replacement", _as_announced)),
        drills=("compact",),
        lives=_compacting,
    ),
    Mutant(
        "compact-producers",
        "idempotence",
        "the segment with the producers' table is compacted, too",
        plant((stream_compaction, "_may_move", _any_may_move)),
        drills=("compact",),
        lives=_compacting,
    ),
    Mutant(
        "compact-deletes-first",
        "5, 25",
        "old ledgers are deleted, then replaced in the list",
        plant((compaction, "_replace", _delete_first)),
        drills=("compact",),
        lives=_compacting,
    ),
    Mutant(
        "compact-forgets",
        "25",
        "old ledgers leave the list without an intent",
        plant((compaction, "retiring_op", _no_intents)),
        drills=("compact",),
        lives=_compacting,
    ),
    Mutant(
        "stale-pages",
        "25",
        "pages are kept in memory although compaction wrote them again",
        plant((StreamStore, "page", _pages_for_good)),
        lives=_paged_compacting,
        seeds=200,
    ),
)
