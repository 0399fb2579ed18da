"""The copies check: whether the bookies that ledgers name list the entries that they must hold. What lacks is marked.

Nothing is copied here: a marked ledger is checked entry by entry by a replicator. Bookies that are away are left to
the audit of bookies, and the last fragment of an open ledger to its writer. The date is written only after a complete
run, so a new auditor begins anew what another one did not end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from buckram.client.client import Client
from buckram.client.maintain.audit import ReplicaAuditor
from buckram.client.read.replicas import ask
from buckram.config import HealingConfig
from buckram.core.healing.needs import members_of, needs_of
from buckram.core.healing.schedule import due_in_s
from buckram.core.ledgers.audit import Piece, plan_pieces
from buckram.core.ledgers.metadata import birth_of
from buckram.core.ledgers.recovery import quorum_of
from buckram.core.wire.availability import BadAvailability, EntryList
from buckram.core.wire.introduction import Peer
from buckram.core.wire.messages import ListEntries, ListEntriesReply
from buckram.errors import (
    AccessRefused,
    BuckramError,
    ClusterNotInitialised,
    Code,
    InvariantViolation,
    MalformedRecord,
    MetadataError,
    NoSuchLedger,
    StoreReplaced,
)
from buckram.healing.auditor import Auditor
from buckram.healing.board import Board
from buckram.metadata.underreplication import Underreplication
from buckram.net.pace import Pace
from buckram.types import BookieId, LedgerId, LedgerMetadata

log = logging.getLogger("buckram.healing")
_PAGE = 1000
_TRIES = 3
_SILENT_S = _LOOK_S = 60.0
COPIES = "checkallledgers"
"""The name of the date in the tree: Apache's check of all ledgers marks what lacks, as this one does."""
_PIECE_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Checked:
    """What one run of the copies check found."""

    ledgers: int = 0
    """Ledgers that were looked at."""
    marked: int = 0
    """Ledgers with a bookie that does not hold all its entries."""
    unknown: int = 0
    """Ledgers with a bookie that could not be asked, or whose record changed all the time."""
    unreadable: int = 0
    """Ledgers whose record or mark nobody can read."""
    complete: bool = False
    """Every ledger was looked at; False for a run that was stopped."""


class CopiesCheck:
    """Runs over all ledgers, one ledger after the other. `requests` and `reads` limit how fast bookies are asked."""

    def __init__(self, client: Client, tree: Underreplication, requests: Pace, reads: Pace) -> None:
        self._client, self._services, self._tree = client, client.services, tree
        self._requests, self._reads = requests, reads
        self._listless: set[BookieId] = set()
        """Bookies that did not answer with a list: they are read at once."""
        self._silent_until: dict[BookieId, float] = {}
        """Bookies that could not be read a moment ago: nobody waits for them once for each ledger."""

    async def run(self, go_on: Callable[[], bool]) -> Checked:
        """Look at every ledger while `go_on` says so. Raises MetadataError where ledgers cannot be listed or marked."""
        found, after, store = Checked(), -1, self._services.store
        while page := await store.list_ledgers(after=after, limit=_PAGE):
            for ledger in page:
                if not go_on():
                    return found
                found.ledgers += 1
                await self._ledger(ledger, found)
            after = page[-1]
        found.complete = True
        return found

    async def _ledger(self, ledger: LedgerId, found: Checked) -> None:
        """One that cannot be read is counted, and never stops the others."""
        try:
            lacking = await self._lacking(ledger)
            if lacking is None:
                found.unknown += 1
            elif lacking:
                await self._tree.mark(ledger, lacking, self._services.runtime.clock.wall_us() // 1000)
                found.marked += 1
                log.warning("ledger %d is marked: %s lack entries", ledger, ", ".join(lacking))
        except NoSuchLedger:
            return
        except (MalformedRecord, AccessRefused) as error:
            found.unreadable += 1
            log.warning("copies check: %s", error)
        except (MetadataError, InvariantViolation):
            raise
        except BuckramError as error:
            found.unknown += 1
            log.warning("copies check: ledger %d: %s", ledger, error)

    async def _lacking(self, ledger: LedgerId) -> list[BookieId] | None:
        """Bookies that do not hold all that the record places on them; None: one of them could not be asked.

        What lacks counts only while the record stays the same: a bookie gives up what another one took over.
        """
        store = self._services.store
        before = await store.read_ledger(ledger)
        for _ in range(_TRIES):
            lacking: list[BookieId] = []
            unknown = False
            for bookie in members_of(before.metadata):
                if self._services.bookies.info(bookie) is None:
                    continue
                holds = await self._holds(ledger, before.metadata, bookie)
                unknown |= holds is None
                if holds is False:
                    lacking.append(bookie)
            if not lacking:
                return None if unknown else []
            again = await store.read_ledger(ledger)
            if again.version == before.version:
                return lacking
            before = again
        return None

    async def _holds(self, ledger: LedgerId, metadata: LedgerMetadata, bookie: BookieId) -> bool | None:
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
        if self._silent_until.get(bookie, 0.0) > asyncio.get_running_loop().time():
            return None
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
        pieces = [piece for piece in plan_pieces(ledger, metadata, _PIECE_BYTES) if piece.bookie == bookie]
        if info is None or info.address is None or not pieces:
            return None
        peer = Peer(info.address, self._services.identities.expected(bookie))
        async with ReplicaAuditor(self._services.runtime, {bookie: peer}) as auditor:
            held = await self._read_pieces(auditor, pieces)
        if held is None:
            self._silent_until[bookie] = asyncio.get_running_loop().time() + _SILENT_S
        return held

    async def _read_pieces(self, auditor: ReplicaAuditor, pieces: list[Piece]) -> bool | None:
        for piece in pieces:
            report = await auditor.check(piece, self._reads)
            if report.state != "good":
                return None if report.state == "unknown" else False
        return True


class PeriodicChecks:
    """The checks of one candidate. `run` never ends by itself; cancel it."""

    def __init__(self, client: Client, auditor: Auditor, config: HealingConfig) -> None:
        self._client, self._auditor, self._config = client, auditor, config
        store = client.services.store
        self._tree, self._board = Underreplication(store.keys, store.root, auditor.name), Board(store)

    async def run(self) -> None:
        """Look whether a check is due, again and again. Ends with a bug or a replaced store only."""
        interval_s = self._config.copies_check_interval_s
        while True:
            wait_s = _LOOK_S
            if interval_s and self._auditor.elected:
                try:
                    wait_s = min(_LOOK_S, await self._step(interval_s))
                except (StoreReplaced, ClusterNotInitialised):
                    raise
                except MetadataError as error:
                    log.warning("auditor %s: the copies check is not complete: %s", self._auditor.name, error)
            await asyncio.sleep(min(wait_s, interval_s or _LOOK_S))

    async def _step(self, interval_s: float) -> float:
        """Run the check if it is due; gives the seconds until it has to be looked at again."""
        clock = self._client.services.runtime.clock
        due_s = due_in_s(await self._tree.last_run_ms(COPIES), clock.wall_us() // 1000, interval_s)
        if due_s > 0 or not await self._tree.enabled():
            return due_s or _LOOK_S
        found = await self.check()
        log.info(
            "auditor %s: copies check: %d ledgers, %d marked, %d unknown, %d unreadable",
            *(self._auditor.name, found.ledgers, found.marked, found.unknown, found.unreadable),
        )
        if found.complete:
            await self._tree.set_last_run(COPIES, clock.wall_us() // 1000)
        return interval_s

    async def check(self) -> Checked:
        """One run now, for as long as this auditor is elected."""
        requests, reads = Pace(self._config.check_requests_per_s), Pace(self._config.copy_bytes_per_s)
        found = await CopiesCheck(self._client, self._tree, requests, reads).run(lambda: self._auditor.elected)
        if found.marked:
            await self._board.marked()
        return found
