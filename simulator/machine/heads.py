"""The rules of a machine's head (R7, R8) and of the ledgers of its snapshots, checked at every change.

They are written independently of core/streams/metadata/snapshots.py, whose bugs they must find.
"""

from __future__ import annotations

from buckram.core.streams.metadata.head import Head, decode_head
from buckram.metadata.tree.layout import ClusterLayout
from buckram.types import KeyValue, LedgerId, LedgerState
from simulator.engine.checkers.facts import Facts
from simulator.engine.checkers.report import Report
from simulator.machine.faults import NAME, VANDAL


class HeadWatch:
    """Checks each change of the head; a MetadataObserver (`simulator/engine/metadata.py`)."""

    def __init__(self, ledgers: Facts, report: Report, layout: ClusterLayout, keep: int) -> None:
        self._ledgers, self._report, self._layout, self._keep = ledgers, report, layout, keep
        self.head: Head | None = None

    def key_changed(self, who: str, key: str, old: KeyValue | None, new: KeyValue | None) -> None:
        ledger = self._layout.ledger_of(key)
        if ledger is not None:
            if new is None:
                self._ledger_deleted(who, ledger)
        elif key.endswith(f"/streams/heads/{NAME.namespace}/{NAME.stream}") and new is not None:
            before, self.head = self.head, decode_head(str(NAME), new.value)
            self._head_changed(who, before, self.head)

    def _ledger_deleted(self, who: str, ledger: LedgerId) -> None:
        rows = self.head.snapshots or () if self.head is not None else ()
        published = any(row.ledger == ledger for row in rows)
        self._report.check("kept", not published, "{} deletes ledger {} of a published snapshot", who, ledger)

    def _head_changed(self, who: str, before: Head | None, head: Head) -> None:
        check, rows = self._report.check, head.snapshots or ()
        known = {row.ledger: row for row in (before.snapshots or ())} if before is not None else {}
        offsets = [row.offset for row in rows]
        check("R7", offsets == sorted(set(offsets)), "{} lists snapshots at {}", who, offsets)
        for row in rows:
            if row.ledger in known or who == VANDAL:
                continue
            self._report.situation("a snapshot was published")
            metadata = self._ledgers.ledger(row.ledger).metadata
            sealed = metadata is not None and metadata.state is LedgerState.CLOSED
            end = metadata.last_entry if metadata is not None and sealed else None
            check("R7", sealed and end == row.last_entry, "{} lists {}, whose ledger is {}", who, row, metadata)
            newest = max((one.offset for one in known.values()), default=-1)
            check("R7", row.offset > newest, "{} lists a snapshot at {} after {}", who, row.offset, newest)
        earliest = before.earliest if before is not None else 0
        check("R8", head.earliest >= earliest, "{} moves earliest back to {}", who, head.earliest)
        if head.earliest != earliest:
            fits = len(rows) >= self._keep and head.earliest <= rows[0].offset
            check("R8", fits, "{} moves earliest to {}, snapshots are at {}", who, head.earliest, offsets)
        elif rows:
            check("R8", head.earliest <= rows[0].offset, "earliest is {}, snapshots at {}", head.earliest, offsets)

    def key_conflict(self, who: str, key: str) -> None:
        """No rule is about it."""

    def reply_lost(self, who: str, key: str) -> None:
        """No rule is about it."""

    def unread_version(self, who: str, key: str, version: int) -> None:
        """Do nothing: the judge checks this (S11)."""


__all__ = ["HeadWatch"]
