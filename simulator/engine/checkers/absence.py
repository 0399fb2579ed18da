"""F18, F19: which answers a recovery must have before it may decide that an entry does not exist."""

from __future__ import annotations

from dataclasses import dataclass, field

from buckram.core.entries.entry import Digest
from buckram.errors import Code, DigestMismatch
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState
from simulator.engine.checkers.base import Checker
from simulator.engine.checkers.facts import Facts, LedgerFacts, members_of
from simulator.engine.checkers.inspector import Inspector
from simulator.engine.checkers.report import Report
from simulator.engine.checkers.wire import Answer

ANSWER_WAIT_S = 1.0
"""Time for which a recovery waits for a bookie that does not answer, seconds."""
NOTICE_S = 0.1
"""Time within which a client learns of a registration if no message is late, seconds.

The event, a listing and the record travel some milliseconds each, or a connection more if the store was just reached
anew.
"""
FENCE_SYNCS = 8
"""Number of disk operations that a fence may wait for: the block before it, a larger file, the superblock, its
block."""
_open_lac = Digest.open_lac
"""The function as it was at import: a mutant planted in it must not affect this checker."""


@dataclass(slots=True)
class _Evidence:
    """The answers that one client got since its recovery of a ledger began."""

    began: float
    holders: frozenset[BookieId]
    """The bookies that had acknowledged any entry of the ledger by then."""
    copies: dict[EntryId, BookieId] = field(default_factory=dict)
    """The bookie that sent the first copy of an entry before the time for bookies that do not answer can have passed.
    That time counts all waits of a recovery together, so a later copy may come after the end was decided."""
    answered: dict[tuple[EntryId, BookieId], bool] = field(default_factory=dict)
    lac: EntryId = -1
    """The highest confirmed entry that an answer proved, and the bookie that sent it (`lac_source`)."""
    lac_source: str = ""
    decided: bool = False
    """Set once the client has sent the change that closes the ledger."""


class Absence(Checker):
    """F18 and F19, checked when a recovery closes a ledger."""

    def __init__(self, facts: Facts, report: Report, inspector: Inspector) -> None:
        super().__init__(facts, report)
        pace = inspector.pace
        self._notice_s = pace.deadline_s(NOTICE_S, metadata_requests=2)
        self._admits_in_time = pace.deadline_s(0.0, metadata_requests=2) < ANSWER_WAIT_S
        """A bookie that does not know the ledger reads metadata before it accepts the fence: twice, to see whether the
        store is not an older one, and for the ledger's key."""
        self._fences_in_time = pace.deadline_s(0.0, syncs=FENCE_SYNCS) < ANSWER_WAIT_S
        self._inspector = inspector
        self._evidence: dict[tuple[str, LedgerId], _Evidence] = {}

    def recovery_started(self, ledger: LedgerFacts, client: str) -> None:
        if not self.facts.recovering.get((client, ledger.ledger)):
            holders = frozenset(bookie for claims in ledger.claims.values() for bookie in claims)
            self._evidence[client, ledger.ledger] = _Evidence(self._inspector.now(), holders)

    def close_requested(self, ledger: LedgerFacts, client: str) -> None:
        evidence = self._evidence.get((client, ledger.ledger))
        if evidence is not None:
            evidence.decided = True

    def answer_delivered(self, answer: Answer) -> None:
        request = answer.request
        if request is None or not (request.fence or request.kind == "read_lac"):
            return
        ledger, evidence = self.facts.ledgers.get(request.ledger), self._evidence.get((request.client, request.ledger))
        if ledger is None or evidence is None or evidence.decided:
            return
        if request.entry >= 0:
            evidence.answered[request.entry, request.bookie] = True
        for body in answer.bodies if answer.code is Code.OK else ():
            found = ledger.open(request.entry if request.entry >= 0 else None, body)
            if found is not None:
                if request.fence and self._inspector.now() < evidence.began + ANSWER_WAIT_S:
                    evidence.copies.setdefault(found[0], request.bookie)
                self._keep_lac(evidence, found[1], request.bookie)
        if answer.lac_packet is not None and ledger.digest is not None:
            try:
                self._keep_lac(evidence, _open_lac(ledger.digest, ledger.ledger, answer.lac_packet), request.bookie)
            except DigestMismatch:
                return

    def _keep_lac(self, evidence: _Evidence, lac: EntryId, bookie: BookieId) -> None:
        if lac > evidence.lac:
            evidence.lac, evidence.lac_source = lac, bookie

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        evidence = self._evidence.get((who, ledger.ledger))
        if old is None or new is None or evidence is None or who == ledger.writer:
            return
        if not new.closed or old.state is not LedgerState.IN_RECOVERY:
            return
        assert new.last_entry is not None
        after = new.last_entry + 1
        members = members_of(old.last_fragment, old, after)
        copy = next((b for e, b in evidence.copies.items() if e == after), None)
        self.report.check(
            "F18",
            copy is None,
            "{} closed ledger {} at {} although {} had sent it entry {}",
            who,
            ledger.ledger,
            new.last_entry,
            copy,
            after,
        )
        silent = [
            b
            for b in members
            if (after, b) not in evidence.answered
            and self._could_answer(b, evidence.began, who)
            and self._fences_in_time
            and (self._admits_in_time or b in evidence.holders)
        ]
        self.report.check(
            "F18",
            not silent,
            "{} closed ledger {} at {} without an answer of {}, which were well and reachable",
            who,
            ledger.ledger,
            new.last_entry,
            silent,
        )
        self.report.check(
            "F19",
            evidence.lac <= new.last_entry,
            "{} closed ledger {} at {}, but an answer of {} had proved that everything up to {} is confirmed",
            who,
            ledger.ledger,
            new.last_entry,
            evidence.lac_source,
            evidence.lac,
        )

    def _could_answer(self, bookie: BookieId, began: float, who: str) -> bool:
        # The recovery learns from metadata that the bookie is back, which takes a while.
        since = began - self._notice_s
        steady = self._inspector.steady(bookie, since) and self._inspector.steady(who, since)
        facts = self.facts.bookie(bookie)
        return facts.running and steady and facts.listed_at < since
