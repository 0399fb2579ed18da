"""F18, F19: what a recovery must have heard before it says that an entry does not exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from buckram.core.entries.entry import Digest
from buckram.errors import Code, DigestMismatch
from buckram.sim.engine.checkers.base import Checker
from buckram.sim.engine.checkers.facts import Facts, LedgerFacts, members_of
from buckram.sim.engine.checkers.report import Report
from buckram.sim.engine.checkers.wire import Answer
from buckram.sim.engine.pace import Pace
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState

PATIENCE_S = 1.0
"""So long a recovery waits for a member that does not answer."""
SYNCS = 8
"""Operations of a disk that a fence may wait for: the block before it, a longer log file, its superblock, its block."""
_open_lac = Digest.open_lac
"""As it was at import: a bug planted there must not blind the judge."""


@dataclass(slots=True)
class _Heard:
    """By one client since its recovery of a ledger began."""

    began: float
    knew: frozenset[BookieId]
    """Who had something of the ledger then."""
    copies: dict[EntryId, BookieId] = field(default_factory=dict)
    answered: dict[tuple[EntryId, BookieId], bool] = field(default_factory=dict)
    lac: EntryId = -1
    source: str = ""
    decided: bool = False
    """It has asked for the close."""


class Absence(Checker):
    """`steady(host, since)`: nothing was wrong with the host since then, and nothing is now."""

    def __init__(
        self,
        facts: Facts,
        report: Report,
        now: Callable[[], float],
        steady: Callable[[str, float], bool],
        pace: Pace,
    ) -> None:
        super().__init__(facts, report)
        self._return_s = pace.patience(0.0, questions=2)
        self._asks_in_time = pace.patience(0.0, questions=2) < PATIENCE_S
        """A bookie that does not know the ledger asks metadata before it lets itself be fenced: whether the store is
        to be believed, then for the ledger's key."""
        self._fences_in_time = pace.patience(0.0, syncs=SYNCS) < PATIENCE_S
        self._now, self._steady = now, steady
        self._heard: dict[tuple[str, LedgerId], _Heard] = {}

    def recovery_begins(self, ledger: LedgerFacts, client: str) -> None:
        if not self.facts.recovering.get((client, ledger.ledger)):
            knew = frozenset(bookie for claims in ledger.claims.values() for bookie in claims)
            self._heard[client, ledger.ledger] = _Heard(self._now(), knew)

    def close_begins(self, ledger: LedgerFacts, client: str) -> None:
        heard = self._heard.get((client, ledger.ledger))
        if heard is not None:
            heard.decided = True

    def answer_delivered(self, answer: Answer) -> None:
        request = answer.request
        if request is None or not (request.fence or request.kind == "read_lac"):
            return
        ledger, heard = self.facts.ledgers.get(request.ledger), self._heard.get((request.client, request.ledger))
        if ledger is None or heard is None or heard.decided:
            return
        if request.entry >= 0:
            heard.answered[request.entry, request.bookie] = True
        for body in answer.bodies if answer.code is Code.OK else ():
            found = ledger.open(request.entry if request.entry >= 0 else None, body)
            if found is not None:
                if request.fence:
                    heard.copies.setdefault(found[0], request.bookie)
                self._promise(heard, found[1], request.bookie)
        if answer.lac_packet is not None and ledger.digest is not None:
            try:
                self._promise(heard, _open_lac(ledger.digest, ledger.ledger, answer.lac_packet), request.bookie)
            except DigestMismatch:
                return

    def _promise(self, heard: _Heard, lac: EntryId, bookie: BookieId) -> None:
        if lac > heard.lac:
            heard.lac, heard.source = lac, bookie

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        heard = self._heard.get((who, ledger.ledger))
        if old is None or new is None or heard is None or who == ledger.writer:
            return
        if not new.closed or old.state is not LedgerState.IN_RECOVERY:
            return
        assert new.last_entry is not None
        after = new.last_entry + 1
        members = members_of(old.last_fragment, old, after)
        copy = next((b for e, b in heard.copies.items() if e == after), None)
        self.report.check(
            "F18",
            copy is None,
            "{} closed ledger {} at {} although {} had given it entry {}",
            who,
            ledger.ledger,
            new.last_entry,
            copy,
            after,
        )
        silent = [
            b
            for b in members
            if (after, b) not in heard.answered
            and self._could_answer(b, heard.began, who)
            and self._fences_in_time
            and (self._asks_in_time or b in heard.knew)
        ]
        self.report.check(
            "F18",
            not silent,
            "{} closed ledger {} at {} before it had heard of {}, with which all is well",
            who,
            ledger.ledger,
            new.last_entry,
            silent,
        )
        self.report.check(
            "F19",
            heard.lac <= new.last_entry,
            "{} closed ledger {} at {}, but {} had shown it that everything up to {} is confirmed",
            who,
            ledger.ledger,
            new.last_entry,
            heard.source,
            heard.lac,
        )

    def _could_answer(self, bookie: BookieId, began: float, who: str) -> bool:
        # That one is back is heard of from metadata.
        since = began - self._return_s
        return self.facts.bookie(bookie).running and self._steady(bookie, since) and self._steady(who, since)
