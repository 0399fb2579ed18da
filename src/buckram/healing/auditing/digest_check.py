"""The digest check: entries of every bookie of every ledger are read from its files, and their digests verified.

A sample of them, or all. A bad copy marks its ledger, and a replicator makes it again. Nothing can be said of ledgers
without digests, nor of those with a MAC whose password is not in their record: they are counted.
"""

from __future__ import annotations

from buckram.client.ledger_client import LedgerClient
from buckram.client.maintain.replica_audit import ReplicaAuditor
from buckram.core.healing.sampling import sample
from buckram.core.ledgers.replica_audit import plan_pieces
from buckram.core.wire.introduction import Peer
from buckram.healing.auditing.ledger_checks import PIECE_BYTES
from buckram.healing.auditing.ledger_walk import MemberCheck
from buckram.metadata.records.underreplication import Underreplication
from buckram.runtime.net.pace import Pace
from buckram.types import BookieId, DigestType, LedgerId, LedgerMetadata


class DigestCheck(MemberCheck):
    """Reads `fraction` of the entries of each member, at least one of each piece; 1: all. `async with` or close()."""

    title = "digest check"

    def __init__(
        self, client: LedgerClient, tree: Underreplication, fraction: float, requests: Pace, reads: Pace
    ) -> None:
        super().__init__(client, tree)
        self._fraction, self._requests, self._reads = fraction, requests, reads
        self._auditors: dict[BookieId, tuple[Peer, ReplicaAuditor]] = {}

    async def __aenter__(self) -> DigestCheck:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        auditors, self._auditors = self._auditors, {}
        for _, auditor in auditors.values():
            await auditor.close()

    def skips(self, metadata: LedgerMetadata) -> bool:
        kind = metadata.digest_type
        return kind in (None, DigestType.DUMMY) or (kind is DigestType.MAC and metadata.password is None)

    async def holds(self, ledger: LedgerId, metadata: LedgerMetadata, bookie: BookieId) -> bool | None:
        """Return False if an entry that was read is bad, or the bookie does not have it."""
        pieces = [piece for piece in plan_pieces(ledger, metadata, PIECE_BYTES) if piece.bookie == bookie]
        pieces = [piece for piece in pieces if piece.entries]
        auditor = await self._auditor(bookie) if pieces else None
        if auditor is None:
            return None if pieces else True
        for piece in pieces:
            await self._requests.take(1)
            if self._fraction >= 1:
                report = await auditor.check(piece, self._reads)
            else:
                entries = sample(piece.ranges, self._fraction, self._services.runtime.rng)
                report = await auditor.sample(piece, entries, self._reads)
            if report.state == "unknown":
                self.was_silent(bookie)
                return None
            if report.state != "good":
                return False
        return True

    async def _auditor(self, bookie: BookieId) -> ReplicaAuditor | None:
        """Return connections to a bookie as it is registered now; None if it has no address."""
        info = self._services.bookies.info(bookie)
        if info is None or info.address is None:
            return None
        peer = Peer(info.address, self._services.identities.expected(bookie))
        known = self._auditors.get(bookie)
        if known is not None and known[0] == peer:
            return known[1]
        if known is not None:
            await known[1].close()
        auditor = ReplicaAuditor(self._services.runtime, {bookie: peer})
        self._auditors[bookie] = peer, auditor
        return auditor


__all__ = ["DigestCheck"]
