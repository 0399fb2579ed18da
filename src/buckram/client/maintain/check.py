"""Check of one ledger: which bookie lacks which entries, by the lists of bookies or by reading every copy.

It changes nothing. Not here: repairing it (`client/maintain/repair.py`); the check of all ledgers that an auditor runs
by itself (`healing/auditing/periodic_checks.py`); reading the copies (`client/maintain/replica_audit.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from buckram.client.maintain.replica_audit import ReplicaAuditor
from buckram.client.read.replicas import ask
from buckram.client.shared.services import Services
from buckram.core.ledgers.metadata import birth_of
from buckram.core.ledgers.replica_audit import Piece, Row, held_rows, plan_pieces, without
from buckram.core.wire.availability import BadAvailability, EntryList
from buckram.core.wire.introduction import Peer
from buckram.core.wire.messages import ListEntries, ListEntriesReply
from buckram.errors import BuckramError, Code
from buckram.runtime.net.pace import Pace
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata

NAMED_ROWS = 100
"""Maximum number of rows that are named for one bookie; entries beyond them are only counted."""
_TRIES = 3
_PIECE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Lacking:
    """Entries that a bookie must hold and does not: `kind` is "away", "missing" or "damaged"."""

    bookie: BookieId
    kind: str
    entries: int
    rows: tuple[Row, ...]
    """Rows of missing entries, at most the first `NAMED_ROWS`."""
    why: str


@dataclass(slots=True)
class CheckReport:
    """The result of a check. `replicas`: number of copies of entries that there must be; `replicas_unknown` of them are
    on bookies that could not be asked."""

    ledger_id: LedgerId
    replicas: int = 0
    replicas_unknown: int = 0
    lacking: list[Lacking] = field(default_factory=list)
    unknown: dict[BookieId, str] = field(default_factory=dict)
    """Bookies that could not be asked, and why."""
    open_from: EntryId | None = None
    """Entry from which on the ledger can still grow, so that missing copies there are not reported; None if it is
    closed."""

    @property
    def replicas_lacking(self) -> int:
        """Return the number of copies that are away, missing or damaged."""
        return sum(one.entries for one in self.lacking)

    @property
    def healthy(self) -> bool:
        """Return whether every copy is there, and every bookie could be asked."""
        return not self.lacking and not self.unknown

    @property
    def state(self) -> str:
        """Return the gravest of "damaged", "lacks copies" and "unknown" that applies, else "healthy"."""
        if any(one.kind == "damaged" for one in self.lacking):
            return "damaged"
        if self.lacking:
            return "lacks copies"
        return "unknown" if self.unknown else "healthy"


async def check_ledger(
    services: Services, ledger_id: LedgerId, *, read: bool = False, pace: Pace | None = None
) -> CheckReport:
    """Ask every member for its list of the ledger's entries, or with `read` read and verify all that it must hold.

    What lacks counts only while the record stays the same: a bookie gives up what another one took over. `pace` limits
    reading. Errors: NoSuchLedger, MalformedRecord, MetadataUnavailable.
    """
    before = await services.store.read_ledger(ledger_id)
    await services.bookies.refresh()
    for _ in range(_TRIES):
        found = await _Check(services, ledger_id, before.metadata, pace or Pace(None)).run(read=read)
        if found.healthy:
            break
        again = await services.store.read_ledger(ledger_id)
        if again.version == before.version:
            break
        before = again
        await services.bookies.refresh()
    return found


class _Check:
    def __init__(self, services: Services, ledger_id: LedgerId, metadata: LedgerMetadata, pace: Pace) -> None:
        self._services, self._metadata, self._pace = services, metadata, pace
        self._report = CheckReport(ledger_id)

    async def run(self, *, read: bool) -> CheckReport:
        metadata, report = self._metadata, self._report
        if not metadata.closed:
            report.open_from = metadata.last_fragment.first_entry
        for bookie in dict.fromkeys(member for fragment in metadata.fragments for member in fragment.ensemble):
            if not any(True for _ in self._ranges(bookie)):
                continue
            if self._services.bookies.info(bookie) is None:
                self._lacks(bookie, "away", self._ranges(bookie), "it is not registered")
            elif read:
                await self._read(bookie)
            else:
                await self._list(bookie)
            held = sum(last - first + 1 for first, last in self._ranges(bookie))
            report.replicas += held
            if bookie in report.unknown:
                report.replicas_unknown += held - sum(one.entries for one in report.lacking if one.bookie == bookie)
        return report

    def _ranges(self, bookie: BookieId) -> Iterator[Row]:
        """Return the rows that the bookie must hold, ascending; those of the fragment that can still grow are left
        out."""
        return held_rows(self._metadata, bookie)

    def _lacks(self, bookie: BookieId, kind: str, rows: Iterable[Row], why: str, count: int | None = None) -> None:
        named: list[Row] = []
        entries = 0
        for row in rows:
            entries += row[1] - row[0] + 1
            if len(named) < NAMED_ROWS:
                named.append(row)
        entries = entries if count is None else count
        if entries:
            self._report.lacking.append(Lacking(bookie, kind, entries, tuple(named), why))

    async def _list(self, bookie: BookieId) -> None:
        question = ListEntries(self._report.ledger_id, birth=birth_of(self._metadata))
        reply = await ask(self._services.pool, bookie, question)
        if isinstance(reply, ListEntriesReply) and reply.code is Code.OK:
            try:
                held = EntryList.decode(reply.availability)
            except BadAvailability as error:
                self._report.unknown[bookie] = str(error)
                return
            if not held.covers(self._ranges(bookie)):
                self._lacks(bookie, "missing", without(self._ranges(bookie), held.runs()), "they are not in its list")
        elif not isinstance(reply, BuckramError) and reply.code in (Code.NO_LEDGER, Code.NO_ENTRY):
            self._lacks(bookie, "missing", self._ranges(bookie), "it knows no such ledger")
        elif isinstance(reply, BuckramError):
            self._report.unknown[bookie] = str(reply)
        elif reply.code is Code.UNKNOWN_LEDGER_STATE:
            self._report.unknown[bookie] = (
                "it may have lost data (limbo), so its list does not prove what it lacks: read the entries"
            )
        else:
            self._report.unknown[bookie] = (
                f"it answered {reply.code.name} to the request for its list: read the entries"
            )

    async def _read(self, bookie: BookieId) -> None:
        info = self._services.bookies.info(bookie)
        if info is None or info.address is None:
            return
        pieces = [
            piece
            for piece in plan_pieces(self._report.ledger_id, self._metadata, _PIECE_BYTES)
            if piece.bookie == bookie
        ]
        if not pieces:
            self._report.unknown[bookie] = (
                "the record does not say which digests the entries have: recover or repair it"
            )
            return
        peer = Peer(info.address, self._services.identities.expected(bookie))
        async with ReplicaAuditor(self._services.runtime, {bookie: peer}) as auditor:
            await self._read_pieces(auditor, bookie, pieces)

    async def _read_pieces(self, auditor: ReplicaAuditor, bookie: BookieId, pieces: list[Piece]) -> None:
        missing = damaged = 0
        bad: list[EntryId] = []
        for piece in pieces:
            found = await auditor.check(piece, self._pace)
            if found.error:
                self._report.unknown[bookie] = found.error
                break
            missing, damaged = missing + found.missing, damaged + found.damaged + bool(found.lie)
            bad += found.bad
        kind = "damaged" if damaged else "missing"
        why = f"{missing} are missing and {damaged} damaged" if damaged else "it does not have them"
        self._lacks(bookie, kind, _rows(bad), why, missing + damaged)


def _rows(entries: Iterable[EntryId]) -> list[Row]:
    rows: list[Row] = []
    for entry in entries:
        if rows and rows[-1][1] == entry - 1:
            rows[-1] = rows[-1][0], entry
        else:
            rows.append((entry, entry))
    return rows
