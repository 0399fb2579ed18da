"""The copies check: whether the bookies that ledgers name list the entries that they must hold. What lacks is marked.

Nothing is copied here: a marked ledger is checked entry by entry by a replicator. Not here: whether the bytes are good
(`healing/digest_check`).
"""

from __future__ import annotations

import logging

from buckram.client.client import Client
from buckram.client.maintain.audit import ReplicaAuditor
from buckram.client.read.replicas import ask
from buckram.core.healing.needs import needs_of
from buckram.core.ledgers.audit import Piece, plan_pieces
from buckram.core.ledgers.metadata import birth_of
from buckram.core.ledgers.recovery import quorum_of
from buckram.core.wire.availability import BadAvailability, EntryList
from buckram.core.wire.introduction import Peer
from buckram.core.wire.messages import ListEntries, ListEntriesReply
from buckram.errors import BuckramError, Code
from buckram.healing.ledger_walk import MemberCheck
from buckram.metadata.underreplication import Underreplication
from buckram.net.pace import Pace
from buckram.types import BookieId, LedgerId, LedgerMetadata

log = logging.getLogger("buckram.healing")
PIECE_BYTES = 64 * 1024 * 1024


class CopiesCheck(MemberCheck):
    """Runs over all ledgers, one ledger after the other. `requests` and `reads` limit how fast bookies are asked."""

    title = "copies check"

    def __init__(self, client: Client, tree: Underreplication, requests: Pace, reads: Pace) -> None:
        super().__init__(client, tree)
        self._requests, self._reads = requests, reads
        self._listless: set[BookieId] = set()
        """Bookies that did not answer with a list: they are read at once."""

    async def holds(self, ledger: LedgerId, metadata: LedgerMetadata, bookie: BookieId) -> bool | None:
        """Whether the bookie holds all its entries, by its list, else by reading them; None: it cannot be told."""
        quorum = quorum_of(metadata)
        ranges = [
            row
            for member in needs_of(ledger, metadata, (bookie,)).closed_part
            if member.last is not None
            for row in quorum.held_ranges(member.position, member.first, member.last)
        ]
        if not ranges:
            return True
        await self._requests.take(1)
        if bookie in self._listless:
            return await self._read(ledger, metadata, bookie)
        reply = await ask(self._services.pool, bookie, ListEntries(ledger, birth=birth_of(metadata)))
        if isinstance(reply, BuckramError):
            held = await self._read(ledger, metadata, bookie)  # Apache's may leave the question without an answer
            if held is not None:
                self._listless.add(bookie)
            return held
        if isinstance(reply, ListEntriesReply) and reply.code is Code.OK:
            try:
                return EntryList.decode(reply.availability).covers(sorted(ranges))
            except BadAvailability as error:
                log.warning("bookie %s: its list of ledger %d cannot be read: %s", bookie, ledger, error)
        elif reply.code in (Code.NO_LEDGER, Code.NO_ENTRY):
            return False
        return await self._read(ledger, metadata, bookie)

    async def _read(self, ledger: LedgerId, metadata: LedgerMetadata, bookie: BookieId) -> bool | None:
        info = self._services.bookies.info(bookie)
        pieces = [piece for piece in plan_pieces(ledger, metadata, PIECE_BYTES) if piece.bookie == bookie]
        if info is None or info.address is None or not pieces:
            return None
        peer = Peer(info.address, self._services.identities.expected(bookie))
        async with ReplicaAuditor(self._services.runtime, {bookie: peer}) as auditor:
            held = await self._read_pieces(auditor, pieces)
        if held is None:
            self.was_silent(bookie)
        return held

    async def _read_pieces(self, auditor: ReplicaAuditor, pieces: list[Piece]) -> bool | None:
        for piece in pieces:
            report = await auditor.check(piece, self._reads)
            if report.state != "good":
                return None if report.state == "unknown" else False
        return True
