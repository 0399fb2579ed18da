"""Three checks of all ledgers that an auditor repeats: copies, digests, placement. Ledgers that lack copies are marked.

The copies check asks whether the bookies that ledgers name list the entries that they must hold. The digest check reads
entries of every bookie of every ledger from its files, a sample or all, and verifies their digests; nothing can be said
of ledgers without digests, nor of those with a MAC whose password is not in their record: they are counted. The
placement check counts the ledgers that break their placement, by their records alone; `buckram placement check` names
them, and moves members with `--fix`.

Nothing is copied here: a marked ledger is checked entry by entry by a replicator (`healing/repair`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.client.maintain.placement import judge
from buckram.client.maintain.replica_audit import ReplicaAuditor
from buckram.client.read.replicas import ask
from buckram.core.healing.periodic_checks import sample
from buckram.core.ledgers.metadata import birth_of
from buckram.core.ledgers.replica_audit import Piece, Row, held_rows, plan_pieces
from buckram.core.wire.availability import BadAvailability, EntryList
from buckram.core.wire.introduction import Peer
from buckram.core.wire.messages import ListEntries, ListEntriesReply
from buckram.errors import BuckramError, Code, ReadFailed
from buckram.healing.auditing.ledger_walk import Checked, LedgerWalk, MemberCheck
from buckram.metadata.records.underreplication import Underreplication
from buckram.runtime.net.pace import Pace
from buckram.types import BookieId, DigestType, EntryId, LedgerId, LedgerMetadata

log = logging.getLogger("buckram.healing")

PIECE_BYTES = 64 * 1024 * 1024

_ON_THEIR_WAY_S = 1.0


class CopiesCheck(MemberCheck):
    """Runs over all ledgers, one ledger after the other. `requests` and `reads` limit how fast bookies are asked."""

    title = "copies check"

    def __init__(self, client: LedgerClient, tree: Underreplication, requests: Pace, reads: Pace) -> None:
        super().__init__(client, tree)
        self._requests, self._reads = requests, reads
        self._confirmed: tuple[LedgerMetadata, EntryId | None] | None = None
        """Metadata of the open ledger that is checked now, and its last confirmed entry; None before the first open
        ledger.
        """
        self._listless: set[BookieId] = set()
        """Bookies that did not answer with a list of entries: their entries are read instead."""

    async def holds(self, ledger: LedgerId, metadata: LedgerMetadata, bookie: BookieId) -> bool | None:
        """Return whether the bookie holds all its entries, by its list, else by reading them; None if it cannot be
        told.

        Of an open ledger it must hold what was confirmed when that was asked for, a moment before.
        """
        end = None if metadata.closed else await self._end(ledger, metadata)
        rows = partial(held_rows, metadata, bookie, end)  # not a list: a record may speak of any number of entries
        if next(rows(), None) is None:
            return True
        held = await self._lists(ledger, metadata, bookie, rows)
        if held is False and not metadata.closed:  # they may be on their way to the slowest member
            await asyncio.sleep(_ON_THEIR_WAY_S)
            held = await self._lists(ledger, metadata, bookie, rows)
        return held

    async def _end(self, ledger: LedgerId, metadata: LedgerMetadata) -> EntryId | None:
        """Return the last confirmed entry of an open ledger; None if it cannot be read."""
        if self._confirmed is None or self._confirmed[0] is not metadata:
            end = None
            with suppress(ReadFailed):
                password, kind = metadata.password or b"", metadata.digest_type
                async with self._client.open(ledger, password=password, digest=kind) as reader:
                    end = reader.last_confirmed
            self._confirmed = metadata, end
        return self._confirmed[1]

    async def _lists(
        self, ledger: LedgerId, metadata: LedgerMetadata, bookie: BookieId, rows: Callable[[], Iterator[Row]]
    ) -> bool | None:
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
                return EntryList.decode(reply.availability).covers(rows())
            except BadAvailability as error:
                log.warning("bookie %s: its list of ledger %d cannot be read: %s", bookie, ledger, error)
        elif reply.code in (Code.NO_LEDGER, Code.NO_ENTRY):
            return False
        return await self._read(ledger, metadata, bookie)

    async def _read(self, ledger: LedgerId, metadata: LedgerMetadata, bookie: BookieId) -> bool | None:
        info = self._services.bookies.info(bookie)
        pieces = [piece for piece in plan_pieces(ledger, metadata, PIECE_BYTES) if piece.bookie == bookie]
        if not pieces and not metadata.closed:
            return True  # it is only in the open last fragment, which its writer takes care of
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


# -- digests --------------------------------------------------------------------------------------------------


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


# -- placement ------------------------------------------------------------------------------------------------

_NAMED = 20


class PlacementCheck(LedgerWalk):
    """Runs over all ledgers; the first that break their placement are named in the log."""

    title = "placement check"

    async def look(self, ledger: LedgerId, found: Checked) -> None:
        metadata = (await self._services.store.read_ledger(ledger)).metadata
        broken = judge(self._services, ledger, metadata)
        if broken is None:
            return
        found.misplaced += 1
        if found.misplaced <= _NAMED:
            why = "; ".join(str(breach) for _, breaches in broken.fragments for breach in breaches)
            log.info("ledger %d breaks its placement `%s`: %.300s", ledger, broken.policy, why)
