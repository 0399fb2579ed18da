"""Checkers: objects with a method for each kind of event of a life.

The judge (`judge.py`) updates the facts first, then calls the method on every checker.
"""

from __future__ import annotations

from dataclasses import dataclass

from buckram.types import BookieId, EntryId, LedgerMetadata
from simulator.engine.checkers.facts import Copy, Facts, Handle, LedgerFacts
from simulator.engine.checkers.report import Report
from simulator.engine.checkers.wire import Answer, Request


@dataclass(slots=True)
class Insert:
    """One entry that a bookie put into its store.

    `copy` is None if its digest fails. `normal`: not an add of a recovery. `fenced`: the ledger was fenced or deleted
    on the bookie at that moment. `key_ok`: the add carried the ledger's master key.
    """

    bookie: BookieId
    entry: EntryId
    lac: EntryId
    copy: Copy | None
    normal: bool
    fenced: bool
    key_ok: bool


@dataclass(slots=True)
class ReadResult:
    """One finished read of a client.

    `kind` is read, unconfirmed, tail or final; `error` is a class name, or "" for success. `entries` are tuples of
    entry id, payload, length field and the LAC in the entry.
    """

    client: str
    kind: str
    first: EntryId
    last: EntryId
    lac: EntryId
    entries: list[tuple[EntryId, bytes, int, EntryId]]
    error: str = ""
    began_at: float = 0.0
    error_entry: EntryId | None = None


class Checker:
    """Compares events with invariants, by the facts, and reports what it found. By default it ignores an event."""

    def __init__(self, facts: Facts, report: Report) -> None:
        self.facts, self.report = facts, report

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None: ...
    def request_sent(self, request: Request) -> None: ...
    def request_delivered(self, request: Request) -> None: ...
    def answer_sent(self, answer: Answer) -> None: ...
    def answer_delivered(self, answer: Answer) -> None: ...
    def inserted(self, ledger: LedgerFacts, insert: Insert) -> None: ...
    def deleted_by_bookie(self, ledger: LedgerFacts, bookie: BookieId) -> None:
        """Check a bookie's deletion of its copies of a ledger's entries, by garbage collection."""

    def acked(self, ledger: LedgerFacts, handle: Handle, index: int, entry: EntryId) -> None: ...
    def append_failed(self, ledger: LedgerFacts, handle: Handle, index: int, error: BaseException) -> None: ...
    def force_returned(self, ledger: LedgerFacts, handle: Handle, head: EntryId) -> None:
        """Check a call of force() that promised that all entries up to `head` are on disk."""

    def close_requested(self, ledger: LedgerFacts, client: str) -> None:
        """Note that the client has decided on the ledger's end and sends the change; it ignores later answers."""

    def convicted(self, bookie: BookieId, who: str) -> None: ...
    def recovery_started(self, ledger: LedgerFacts, client: str) -> None: ...
    def lac_seen(self, ledger: LedgerFacts, who: str, before: EntryId, lac: EntryId) -> None: ...
    def recovered(self, ledger: LedgerFacts, client: str, last: EntryId, length: int) -> None: ...
    def read_done(self, ledger: LedgerFacts, result: ReadResult) -> None: ...
    def bookie_started(self, bookie: BookieId) -> None:
        """Check a bookie that begins to serve, again or for the first time."""

    def life_ended(self) -> None:
        """Check the end of a life: faults are healed, every ledger is recovered and was read in full."""
