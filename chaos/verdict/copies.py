"""Copies bookie by bookie: those that metadata place on a bookie and that are missing, damaged, or differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from buckram.client.maintain.replica_audit import ReplicaAuditor
from buckram.cluster import Client
from buckram.core.ledgers.answers import Positive
from buckram.core.ledgers.replica_audit import Piece, PieceReport, plan_pieces
from buckram.errors import NoSuchLedger
from buckram.types import LedgerId, LedgerMetadata
from chaos.actors.stage import MARK
from chaos.payloads import entry_payload
from chaos.verdict.state import for_each

_PIECE_BYTES = 64 << 20


@dataclass
class Copies:
    """Result of one look at all copies."""

    good: int = 0
    """Copies that are as they must be."""
    missing: int = 0
    """Copies that are not there, or not good."""
    lacking: dict[LedgerId, list[str]] = field(default_factory=dict)
    """Faults of each ledger that lacks copies, a sentence for each bookie and fragment."""
    differing: list[str] = field(default_factory=list)
    """Copies of an entry that are good by their digests and not what the writer appended (S7)."""
    open: list[LedgerId] = field(default_factory=list)
    """Ledgers that are not closed: the copies of their last fragments are not judged."""
    seen: set[LedgerId] = field(default_factory=set)
    """Ledgers that were looked at."""


async def check_copies(client: Client, ledgers: Iterable[LedgerId], found: Copies) -> None:
    """Read every copy where it is. What differs between bookies is compared with what its writer appended.

    A ledger that lacks copies is looked at again later, so a copy that moves meanwhile is no fault. After an error this
    can be called again with the same `found`, and goes on where it was.
    """
    bookies = await client.services.store.bookies()
    peers = {bookie: info.address for bookie, info in bookies.everybody()}
    async with ReplicaAuditor(client.services.runtime, peers) as auditor:

        async def look(ledger: LedgerId) -> None:
            if ledger in found.seen:
                return
            try:
                metadata = await client.metadata(ledger)
            except NoSuchLedger:
                return
            reports = [await auditor.check(piece) for piece in plan_pieces(ledger, metadata, _PIECE_BYTES)]
            differing = list[str]()
            if MARK in metadata.custom_metadata:
                for piece, entry in _unequal(reports):
                    differing += await _compare(auditor, piece, entry, metadata)
            found.seen.add(ledger)
            found.differing += differing
            if not metadata.closed:
                found.open.append(ledger)
            for report in reports:
                _count(report, found)

        await for_each(ledgers, look)


def _count(report: PieceReport, found: Copies) -> None:
    found.good += report.good
    piece = report.piece
    if report.state == "good" and report.good == piece.entries:
        return
    found.missing += piece.entries - report.good
    found.lacking.setdefault(piece.ledger, []).append(
        f"ledger {piece.ledger}, entries {piece.first} to {piece.last} on {piece.bookie}: {report.state}, "
        f"{report.good} of {piece.entries} are good, {report.missing} missing, {report.damaged} damaged, "
        f"the first {report.bad[:5]} {report.error}"
    )


def _unequal(reports: Iterable[PieceReport]) -> list[tuple[Piece, int]]:
    """Pieces and blocks of them whose sums of digests are not the same on all bookies.

    That is no fault yet: an entry that recovery wrote back carries another LAC, and so another digest.
    """
    sums: dict[tuple[int, int, int, int], set[int]] = defaultdict(set)
    where: dict[tuple[int, int, int, int], list[Piece]] = defaultdict(list)
    for report in reports:
        piece = report.piece
        for one in report.sums:
            key = (piece.first, piece.last, one.block, one.share)
            sums[key].add(one.sum)
            where[key].append(piece)
    return [(piece, key[2]) for key, found in sums.items() if len(found) > 1 for piece in where[key]]


async def _compare(auditor: ReplicaAuditor, piece: Piece, block: int, metadata: LedgerMetadata) -> list[str]:
    """Return a sentence for each entry of the block that this bookie holds with another payload than its writer
    appended."""
    begin, end, found = block * piece.block, (block + 1) * piece.block - 1, list[str]()
    for first, last in piece.ranges:
        for entry in range(max(first, begin), min(last, end) + 1):
            answer = await auditor.entry(piece, entry)
            if isinstance(answer, Positive) and answer.value.payload != entry_payload(piece.ledger, entry):
                text = f"ledger {piece.ledger}: {piece.bookie} holds {answer.value.payload[:40]!r} as entry {entry}"
                found.append(text)
    return found
