"""Periodic checks of all ledgers by the elected auditor: when each is due, what it does, and how long marks have been
open.

The copies check asks whether the bookies that ledgers name list the entries that they must hold. The digest check reads
entries of every bookie of every ledger from its files, a sample or all, and verifies their digests; nothing can be said
of ledgers without digests, nor of those with a MAC whose password is not in their record: they are counted. The
placement check counts the ledgers that break their placement, by their records alone; `buckram placement check` names
them, and moves members with `--fix`.

The due time follows from the date of the last run, which is kept in the metadata store. Another auditor with another
clock may have written it, so a date in the future is not believed. Dates are written only after a complete run, so a
new auditor begins anew what another one did not end. On ZooKeeper those of the copies check and of the placement check
are where Apache's auditor keeps the dates of its own.

Nothing is copied here: a marked ledger is checked entry by entry by a replicator (`healing/repair`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from math import ceil

from buckram.client.ledger_client import LedgerClient
from buckram.client.maintain.placement import judge
from buckram.client.maintain.replica_audit import ReplicaAuditor
from buckram.client.read.replicas import ask
from buckram.config import HealingConfig
from buckram.core.ledgers.metadata import birth_of
from buckram.core.ledgers.replica_audit import Piece, Row, held_rows, plan_pieces
from buckram.core.placement.search import Chooser
from buckram.core.wire.availability import BadAvailability, EntryList
from buckram.core.wire.introduction import Peer
from buckram.core.wire.messages import ListEntries, ListEntriesReply
from buckram.errors import (
    BuckramError,
    ClusterNotInitialised,
    Code,
    MalformedRecord,
    MetadataError,
    ReadFailed,
    StoreReplaced,
)
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.auditing.ledger_walk import Checked, LedgerWalk, MemberCheck
from buckram.healing.overview import COPIES, PLACEMENT
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.underreplication import Underreplication
from buckram.runtime.net.pace import Pace
from buckram.types import BookieId, DigestType, EntryId, LedgerId, LedgerMetadata

__all__ = ["COPIES", "DIGESTS", "PLACEMENT", "PeriodicChecks"]


def due_in_s(last_run_ms: int, now_ms: int, interval_s: float) -> float:
    """Return the seconds until the next run; 0 if no last run is known, or if it lies in the future."""
    if last_run_ms < 0 or last_run_ms > now_ms:
        return 0.0
    return max(0.0, interval_s - (now_ms - last_run_ms) / 1000)


def sample(ranges: Sequence[tuple[EntryId, EntryId]], fraction: float, rng: Chooser) -> list[EntryId]:
    """Draw this fraction of the entries in ascending ranges (first, last), rounded up; all for 1 and more.

    At least one entry is drawn, unless there is none.
    """
    count = sum(last - first + 1 for first, last in ranges)
    wanted = count if fraction >= 1 else min(count, max(1, ceil(count * fraction)))
    found: list[EntryId] = []
    before, rows = 0, iter(ranges)
    first, last = next(rows, (0, -1))
    for number in range(wanted):
        low, high = number * count // wanted, (number + 1) * count // wanted
        index = low + min(high - low - 1, int(rng.random() * (high - low)))
        while index - before > last - first:
            before += last - first + 1
            first, last = next(rows)
        found.append(first + index - before)
    return found


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


_LOOK_S = 60.0
_AGES_S = 300.0
_MOST_MARKS = 10_000
"""Maximum number of marks whose age is looked at."""
DIGESTS = "digests"
"""Name of the digest check. Apache has no such check: its date is with its result, in keys of our own."""


class PeriodicChecks:
    """Periodic checks of one candidate. `run` never ends by itself; cancel it."""

    def __init__(self, client: LedgerClient, auditor: Auditor, config: HealingConfig) -> None:
        self._client, self._auditor, self._config = client, auditor, config
        store = client.services.store
        self._tree, self._board = Underreplication(store.keys, store.root, auditor.name), HealingStatusStore(store)
        self._intervals_s = {
            PLACEMENT: config.placement_check_interval_s,
            COPIES: config.copies_check_interval_s,
            DIGESTS: config.digest_check_interval_s,
        }
        self._ages_at = float("-inf")
        stats = client.services.runtime.stats
        self._oldest = stats.gauge("buckram_healing_oldest_mark_seconds", "since when the oldest mark has been open")

    async def run(self) -> None:
        """Look whether a check is due, again and again. Ends with a bug or a replaced store only."""
        shortest_s = min((interval_s for interval_s in self._intervals_s.values() if interval_s), default=_LOOK_S)
        while True:
            await self._auditor.until_elected()
            wait_s = _LOOK_S
            for check, interval_s in self._intervals_s.items():
                if interval_s and self._auditor.elected:
                    try:
                        wait_s = min(wait_s, await self._step(interval_s, check))
                    except (StoreReplaced, ClusterNotInitialised):
                        raise
                    except MetadataError as error:
                        log.warning("auditor %s: check %s is not complete: %s", self._auditor.name, check, error)
            await self._look_at_ages()
            await asyncio.sleep(min(wait_s, shortest_s))

    async def _step(self, interval_s: float, check: str = COPIES) -> float:
        """Run the check if it is due; return the seconds until it has to be looked at again."""
        due_s = due_in_s(await self._last_ms(check), self._now_ms(), interval_s)
        if due_s > 0 or not await self._tree.enabled():
            return due_s or _LOOK_S
        found = await self.check(check)
        text = ", ".join(f"{count} {what}" for what, count in asdict(found).items() if what != "complete" and count)
        log.info("auditor %s: check %s: %s", self._auditor.name, check, text or "no ledgers")
        if found.complete:
            if check != DIGESTS:
                await self._tree.set_last_run(check, self._now_ms())
            await self._board.say_checked(check, {**asdict(found), "at_ms": self._now_ms()})
        return interval_s

    async def check(self, check: str = COPIES) -> Checked:
        """Run the check once now, for as long as this auditor is elected."""
        client, config, tree = self._client, self._config, self._tree
        requests, reads = Pace(config.check_requests_per_s), Pace(config.copy_bytes_per_s)
        if check == PLACEMENT:
            found = await PlacementCheck(client).run(self._goes_on)
        elif check == DIGESTS:
            async with DigestCheck(client, tree, config.digest_check_fraction, requests, reads) as digests:
                found = await digests.run(self._goes_on)
        else:
            found = await CopiesCheck(client, tree, requests, reads).run(self._goes_on)
        if found.marked:
            await self._board.marked()
        return found

    def _goes_on(self) -> bool:
        return self._auditor.elected

    async def _last_ms(self, check: str) -> int:
        if check != DIGESTS:
            return await self._tree.last_run_ms(check)
        at_ms = (await self._board.checked()).get(DIGESTS, {}).get("at_ms")
        return at_ms if isinstance(at_ms, int) else -1

    # -- the age of marks ---------------------------------------------------------------------------------

    async def _look_at_ages(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._auditor.elected or now - self._ages_at < _AGES_S:
            return
        self._ages_at = now
        try:
            await self.look_at_ages()
        except (StoreReplaced, ClusterNotInitialised):
            raise
        except MetadataError as error:
            log.warning("auditor %s: the age of marks is not known: %s", self._auditor.name, error)

    async def look_at_ages(self) -> None:
        """Set the metric of the oldest mark, and log the ledger that has been marked for longest if that is
        too long.
        """
        oldest_ms, oldest, late, seen = 0, -1, 0, 0
        async for ledger in self._tree.marked():
            try:
                mark = await self._tree.read_mark(ledger)
            except MalformedRecord:
                continue  # status names it; it never hides the others
            age_ms = self._now_ms() - mark.ctime_ms if mark is not None and mark.ctime_ms >= 0 else 0
            late += age_ms > self._config.old_mark_s * 1000
            if age_ms > oldest_ms:
                oldest_ms, oldest = age_ms, ledger
            seen += 1
            if seen >= _MOST_MARKS:
                break
        self._oldest.set(oldest_ms / 1000)
        if late:
            text = "auditor %s: %d ledgers have been marked for more than %g s; ledger %d for %.0f s"
            log.warning(text, self._auditor.name, late, self._config.old_mark_s, oldest, oldest_ms / 1000)

    def _now_ms(self) -> int:
        return self._client.services.runtime.clock.wall_us() // 1000
