"""A replicator: takes marked ledgers, those with the fewest copies first, and makes them whole or gives the reason.

Any number of them share the work through locks, with Apache's too. A ledger ends healthy, in progress, waiting with a
reason, or lost with its entries. Not here: the repair of one ledger (`healing/repair/ledger_repair`).
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from buckram.client.ledger_client import LedgerClient
from buckram.config import HealingConfig
from buckram.core.backoff import STORE_WATCH, Delays
from buckram.core.healing.needs import Needs, copied_bytes, members_of, needs_of, urgency
from buckram.core.healing.records import UnderreplicationMark
from buckram.core.healing.status import Reason, WaitingLedger, Why
from buckram.errors import (
    BuckramError,
    ClusterNotInitialised,
    HandleClosed,
    InvariantViolation,
    MalformedRecord,
    MetadataError,
    NoSuchLedger,
    StoreReplaced,
)
from buckram.healing.repair.ledger_repair import LedgerRepair, Outcome
from buckram.healing.repair.member_verdicts import OpenLedgers
from buckram.healing.status_store import CopyProgress, HealingStatusStore
from buckram.metadata.records.operator_requests import read_wishes
from buckram.metadata.records.underreplication import Candidate, Underreplication
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.types import BookieId, LedgerId

log = logging.getLogger("buckram.healing")
_POLL_S = 5.0
"""Interval between two reads of the marks, seconds: Apache's auditor writes no key to watch, and brakes may be
released.
"""
_QUEUE = 10_000
"""Maximum number of marked ledgers in the queue; the rest is read when these are done."""
_SEEN = 64
_BATCH = 16
"""Ledgers per concurrent worker in a batch; between batches it is checked whether work may go on."""
_SMALL_BYTES, _SMALL_AT_ONCE = 512 * 1024, 6
"""Small ledgers: maximum bytes to copy of one, and how many of them count as one large ledger."""
_READS_AT_ONCE = 64
_BURST_S = 0.02
"""Burst of the speed limit, seconds: copies go out evenly, because large syncs of a target delay writers on
its disk.
"""
_REPORT_S = 0.25
"""Shortest interval between two reports of progress, seconds; the last of a round is always written."""


class Replicator:
    """One replicator process's part. `run` never ends by itself; cancel it, then `close`."""

    def __init__(self, client: LedgerClient, name: str, config: HealingConfig) -> None:
        self._client, self._store, self._config = client, client.services.store, config
        self.name = name
        self._tree = Underreplication(self._store.keys, self._store.root, name)
        self._board = HealingStatusStore(self._store)
        pace = Pace(config.copy_bytes_per_s or None, burst_s=_BURST_S)
        self._repair = LedgerRepair(client, OpenLedgers(client, config.open_ledger_grace_s), pace)
        self._changed = asyncio.Event()
        self._rules_changed = asyncio.Event()
        """Set when copying was disabled or enabled, or the brake was pulled or released."""
        self._forbidden = False
        """True if copying was found to be forbidden while ledgers were in work."""
        self._queue: list[tuple[tuple[int, LedgerId], Candidate]] = []
        """Heap of marked ledgers, the most urgent first."""
        self._leaving: frozenset[BookieId] = frozenset()
        """Bookies that leave and give everything away."""
        self._sizes: dict[LedgerId, int] = {}
        """Estimate of the bytes to copy of each ledger in the queue or in work."""
        self._pace_seen: deque[tuple[float, int]] = deque(maxlen=_SEEN)
        """Samples of the rate: a moment, and the bytes copied by then."""
        self._retry_at: dict[LedgerId, float] = {}
        self._active: dict[LedgerId, None] = {}
        """Ledgers in work."""
        self._coming: dict[LedgerId, None] = {}
        """Ledgers of the batch that are not begun yet."""
        self._unmarked: list[LedgerId] = []
        """Ledgers of the batch that are whole: their leftover keys are tidied together."""
        self._attempts: dict[LedgerId, asyncio.Timeout] = {}
        """Timeouts by ledger that end attempts when their locks are gone, or when copying is forbidden."""
        self._kept: dict[LedgerId, None] = {}
        """Ledgers whose lock this session may hold: a request to take it, or to give it back, may have failed
        half-way.
        """
        self._sessions = 0
        """Number of times the session ended, and all locks with it."""
        self._store.on_session_lost(self._session_lost)
        self.copied_ledgers = self.copied_bytes = self.rounds = 0
        self._reported: CopyProgress | None = None
        self._reported_at = -_REPORT_S

    async def run(self) -> None:
        """Copy what is marked, for ever. Ends with InvariantViolation, or when the client is closed."""
        delays = Delays(STORE_WATCH)
        prepared = False
        while True:
            self._changed.clear()
            try:
                if not prepared:
                    await self._tree.prepare()
                    prepared = True
                wait_s = await self._round()
                self.rounds += 1
                delays.reset()
            except (StoreReplaced, ClusterNotInitialised):
                raise
            except MetadataError as error:
                log.warning("replicator %s: %s", self.name, error)
                wait_s = delays.take()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def close(self) -> None:
        """Give the locks back that are still held."""
        for ledger in list(self._kept):
            with suppress(MetadataError):
                await self._unlock(ledger)

    async def _round(self) -> float:
        """Work until nothing that is marked can be done now; return the seconds to wait."""
        for ledger in list(self._kept):  # nothing is in work between rounds
            await self._unlock(ledger)
        await self._board.watch_marks(self._changed.set)
        if not await self._may_work():
            return _POLL_S
        await self._fill()
        while self._queue and await self._may_work():
            await self._work()
            if not self._queue:
                await self._fill()
        await self._report()
        return _POLL_S

    async def _work(self) -> None:
        """Work on the next ledgers, some at a time, more of small ones, which mostly wait for answers."""
        at_once, self._forbidden = self._config.ledgers_at_once, False
        small, large = deque[Candidate](), deque[Candidate]()
        while self._queue and len(small) + _SMALL_AT_ONCE * len(large) < _BATCH * at_once * _SMALL_AT_ONCE:
            candidate = heapq.heappop(self._queue)[1]
            (small if 0 < self._sizes.get(candidate.ledger, 0) <= _SMALL_BYTES else large).append(candidate)
            self._coming[candidate.ledger] = None

        async def next_one(candidates: deque[Candidate]) -> MetadataError | None:
            try:
                while candidates:
                    candidate = candidates.popleft()
                    self._coming.pop(candidate.ledger, None)
                    await self._take(candidate)
            except MetadataError as error:
                return error  # `run` goes on after it, so it is no failure of a task
            return None

        parts = [large] * min(at_once, len(large)) + [small] * min(_SMALL_AT_ONCE * at_once, len(small))
        try:
            async with TaskScope(f"replicator {self.name}") as scope:
                working = {scope.spawn(next_one(part), "ledgers") for part in parts}
                watching = scope.spawn(self._stop_when_forbidden([small, large]), "rules")
                while working:
                    done, working = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        if error := task.result():
                            raise error
                watching.cancel()
        finally:
            self._coming.clear()
        unmarked, self._unmarked = self._unmarked, []
        await self._board.clear_waiting(unmarked)
        await self._tree.tidy(unmarked)

    async def _stop_when_forbidden(self, coming: Sequence[deque[Candidate]]) -> None:
        """End what is in work, and begin nothing more, once copying is disabled or the brake holds."""
        while True:
            await self._rules_changed.wait()
            self._rules_changed.clear()
            try:
                forbidden = not await self._may_work()
            except MetadataError as error:
                log.warning(
                    "replicator %s stops copying, because it cannot read whether that is allowed: %s", self.name, error
                )
                forbidden = True
            if forbidden:
                self._forbidden = True
                for candidates in coming:
                    candidates.clear()
                self._end_attempts()
                return

    async def _may_work(self) -> bool:
        watch = self._look_at_rules
        return await self._tree.enabled(watch) and await self._board.brake(watch) is None

    def _look_at_rules(self) -> None:
        self._rules_changed.set()
        self._changed.set()

    async def _fill(self) -> None:
        """Read the marks and put those that may be tried now in order of their urgency."""
        now = asyncio.get_running_loop().time()
        locked = frozenset(await self._tree.locked())
        self._leaving = frozenset(b for b, wish in (await read_wishes(self._store)).items() if wish.leave)
        self._queue, self._sizes = [], {}
        self._retry_at = {ledger: at for ledger, at in self._retry_at.items() if at > now}
        found: list[Candidate] = []
        async for candidate in self._tree.candidates():
            if candidate.ledger in locked or candidate.ledger in self._retry_at:
                continue
            found.append(candidate)
            if len(self._queue) + len(found) >= _QUEUE:
                break
            if len(found) == _READS_AT_ONCE:
                await self._queue_up(found)
                found = []
        await self._queue_up(found)

    async def _queue_up(self, candidates: list[Candidate]) -> None:
        found = await asyncio.gather(*(self._needs(one.ledger) for one in candidates))
        for candidate, (needs, size) in zip(candidates, found, strict=True):
            self._sizes[candidate.ledger] = size
            heapq.heappush(self._queue, (urgency(needs), candidate))

    async def _needs(self, ledger: LedgerId) -> tuple[Needs, int]:
        """Return what the ledger lacks because bookies are gone, and an estimate of the bytes to copy."""
        try:
            metadata = (await self._store.read_ledger(ledger)).metadata
        except (NoSuchLedger, MalformedRecord):
            return Needs(ledger, (), 0), 0
        there, members = self._client.services.bookies, members_of(metadata)
        gone = [bookie for bookie in members if there.info(bookie) is None]
        needs = needs_of(ledger, metadata, [*gone, *self._leaving])
        # A living bookie that leaves endangers no entry: ledgers that lost a copy come first.
        return needs_of(ledger, metadata, gone), copied_bytes(metadata, needs)

    async def _take(self, candidate: Candidate) -> None:
        """Make one attempt at a ledger, if it is marked and nobody else has its lock."""
        ledger, sessions = candidate.ledger, self._sessions
        if ledger in self._active:
            return
        self._kept[ledger] = None
        if not await self._tree.lock(ledger, candidate.folder_version):
            del self._kept[ledger]
            return
        if sessions != self._sessions or self._forbidden:
            return  # session lost or copying forbidden meanwhile: the next round gives the lock back or takes it anew
        self._active[ledger] = None
        ended = self._attempts[ledger] = asyncio.timeout(None)
        try:
            async with ended:
                mark, outcome = await self._look(ledger)
                self._attempts.pop(ledger, None)  # its session may have ended this moment
            self.copied_bytes += outcome.copied.bytes
            if outcome.whole and await self._unmark(candidate, mark):
                self._unmarked.append(ledger)
                self._retry_at.pop(ledger, None)
            elif not outcome.whole:
                await self._wait(ledger, outcome)
        except TimeoutError:
            if not ended.expired():
                raise
            why = "its session ended" if sessions != self._sessions else "copying is not allowed any more"
            log.info("replicator %s leaves ledger %d as it is: %s", self.name, ledger, why)
        finally:
            self._attempts.pop(ledger, None)
            del self._active[ledger]
            self._sizes.pop(ledger, None)
            if ledger in self._kept:
                await self._unlock(ledger)
        if asyncio.get_running_loop().time() - self._reported_at >= _REPORT_S:
            await self._report()

    async def _look(self, ledger: LedgerId) -> tuple[UnderreplicationMark | None, Outcome]:
        """Read the mark, now that nobody else can take it back, and do what it asks for."""
        try:
            mark = await self._tree.read_mark(ledger)
        except MalformedRecord as error:
            return None, Outcome([Reason(Why.UNREADABLE_RECORD, str(error))])
        return mark, Outcome() if mark is None else await self._attempt(ledger, mark.replicas)

    async def _unmark(self, candidate: Candidate, mark: UnderreplicationMark | None) -> bool:
        """Remove the ledger's mark; return whether this did it."""
        if mark is None:  # an empty folder, perhaps with a foreign key in it
            self._retry_at[candidate.ledger] = asyncio.get_running_loop().time() + self._config.retry_s
            await self._tree.tidy([candidate.ledger])
            return False
        if await self._tree.finish(mark, candidate.folder_version):
            self._kept.pop(candidate.ledger, None)
        elif not await self._tree.unmark(mark):
            return False
        self.copied_ledgers += 1
        return True

    async def _unlock(self, ledger: LedgerId) -> None:
        """Give the lock back.

        If that fails, the next round tries again: nobody else can work on the ledger until then.
        """
        await self._tree.unlock(ledger)
        self._kept.pop(ledger, None)

    def _session_lost(self) -> None:
        """End every attempt at once: with the session all locks are gone, so others may work on these ledgers
        by now.
        """
        self._sessions += 1
        self._tree.locks_lost()
        self._end_attempts()
        self._changed.set()

    def _end_attempts(self) -> None:
        now = asyncio.get_running_loop().time()
        for ended in self._attempts.values():
            ended.reschedule(now)
        self._attempts.clear()

    async def _attempt(self, ledger: LedgerId, named: tuple[str, ...]) -> Outcome:
        try:
            return await self._repair.run(ledger, named)
        except NoSuchLedger:
            return Outcome()  # deleted meanwhile: nothing is lacking
        except MalformedRecord as error:
            return Outcome([Reason(Why.UNREADABLE_RECORD, str(error))])
        except (MetadataError, InvariantViolation, HandleClosed):
            raise
        except BuckramError as error:
            return Outcome([Reason(Why.OTHER, str(error))])

    async def _wait(self, ledger: LedgerId, outcome: Outcome) -> None:
        now = asyncio.get_running_loop().time()
        self._retry_at[ledger] = now + self._config.retry_s
        at_ms = self._client.services.runtime.clock.wall_us() // 1000
        waiting = WaitingLedger(ledger, tuple(outcome.reasons), outcome.survivors, self.name, at_ms)
        log.info("ledger %d waits: %s", ledger, "; ".join(reason.text for reason in outcome.reasons))
        await self._board.say_waiting(waiting)

    async def _report(self) -> None:
        now, seen = asyncio.get_running_loop().time(), self._pace_seen
        self._reported_at = now
        seen.append((now, self.copied_bytes))
        passed = now - seen[0][0]
        rate = (self.copied_bytes - seen[0][1]) / passed if passed > 0 and self._active else 0.0
        left = sum(self._sizes.values())
        active, queued = tuple(self._active), len(self._queue) + len(self._coming)
        progress = CopyProgress(self.name, active, queued, self.copied_ledgers, self.copied_bytes, rate, left)
        if progress != self._reported:
            self._reported = progress
            with suppress(MetadataError):
                await self._board.report(progress)
