"""What a checker is: an object told of every event after the facts were brought up to date. Each event is a method."""

from __future__ import annotations

from dataclasses import dataclass

from buckram.sim.engine.checkers.facts import Copy, Facts, Handle, LedgerFacts
from buckram.sim.engine.checkers.report import Report
from buckram.sim.engine.checkers.wire import Answer, Request
from buckram.types import BookieId, EntryId, LedgerMetadata


@dataclass(slots=True)
class Insert:
    """One entry put into a bookie's store. `copy`: None where its digest fails; `fenced`: the state at that moment."""

    bookie: BookieId
    entry: EntryId
    lac: EntryId
    copy: Copy | None
    normal: bool
    fenced: bool
    key_ok: bool


@dataclass(slots=True)
class ReadResult:
    """One finished read of a client. `kind`: read, unconfirmed, tail, final. `error`: class name, or "" for success."""

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
    def buried(self, ledger: LedgerFacts, bookie: BookieId) -> None: ...
    def submitted(self, handle: Handle, index: int) -> None: ...
    def acked(self, ledger: LedgerFacts, handle: Handle, index: int, entry: EntryId) -> None: ...
    def append_failed(self, ledger: LedgerFacts, handle: Handle, index: int, error: BaseException) -> None: ...
    def forced(self, ledger: LedgerFacts, handle: Handle, head: EntryId) -> None: ...
    def close_begins(self, ledger: LedgerFacts, client: str) -> None:
        """The client has decided where the ledger ends and asks for it; what it hears from now on comes too late."""

    def convicted(self, bookie: BookieId, who: str) -> None: ...
    def recovery_begins(self, ledger: LedgerFacts, client: str) -> None: ...
    def lac_seen(self, ledger: LedgerFacts, who: str, before: EntryId, lac: EntryId) -> None: ...
    def recovered(self, ledger: LedgerFacts, client: str, last: EntryId, length: int) -> None: ...
    def read_done(self, ledger: LedgerFacts, result: ReadResult) -> None: ...
    def returned(self, bookie: BookieId) -> None:
        """The bookie serves again, or for the first time."""

    def ended(self) -> None:
        """The life is healed, every ledger recovered and read in full."""
