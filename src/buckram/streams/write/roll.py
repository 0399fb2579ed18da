"""Rolling: a segment ends and the next one takes over, without making appends wait.

Before the switch a ledger is prepared that is in no list. From the switch on records go into it; none of them is
released before the old segment is complete, its ledger is closed, and one compare-and-set has sealed the old segment
and listed the new one (M9). While no ledger can be prepared, the roll is put off and records go on into the old
segment. If a ledger breaks, its segment ends early, and the records that it lacks are sent again in another one.

Not here: closing, sealing and listing (`write/sealing.py`), finding out what a broken ledger holds
(`streams/write/sealing.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from buckram.core.backoff import ROLL, Delays
from buckram.core.streams.metadata.changes import check_epoch
from buckram.core.streams.metadata.head import Summary
from buckram.core.streams.policy import Policy
from buckram.core.streams.records.producers import ProducerTable
from buckram.errors import (
    BuckramError,
    HandleClosed,
    InvariantViolation,
    LedgerFenced,
    NoSuchStream,
    WriteFailed,
    WriterLost,
)
from buckram.runtime.process.retry import Retries
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.shared.ledgers import discard, make_ledger
from buckram.streams.shared.metadata import head_retries
from buckram.streams.write.lease import WriterClaim
from buckram.streams.write.sealing import (
    WITHIN_S,
    as_writer_error,
    finish,
    list_segment,
    recover_broken,
    retry_transient,
)
from buckram.streams.write.segment import SegmentEvents, SegmentWriter
from buckram.types import LedgerId, Offset

_PREPARE_AT = 0.75
_CHECK_S = 1.0
_STOP_S = 2.0


class RollerEvents(SegmentEvents, Protocol):
    """Interface of the stream's writer (`StreamEngine`) for the roller, besides the events of segments."""

    def switch_segment(self, fresh: SegmentWriter) -> SegmentWriter | None:
        """Write to `fresh` from now on; returns the segment before, if there was one."""

    def replace_segment(self, failed: SegmentWriter, end: int, fresh: SegmentWriter, table: ProducerTable) -> None:
        """Write what `failed` has not stored to `fresh`; `end` is the first offset that goes there."""

    def segment_listed(self, segment: SegmentWriter) -> None:
        """Learn that the stream's head lists the segment, so that its records may be released."""

    def fail(self, error: BuckramError) -> None:
        """End the writer, because the stream cannot be written to any more."""

    def pause(self) -> None:
        """Send nothing until a segment is switched or replaced."""

    def hold(self) -> asyncio.Future[None]:
        """Give no offsets to further appends; the future is resolved when all before them are acknowledged."""

    def at_rest(self) -> bool:
        """Return whether every append that has begun is acknowledged."""

    def let_go(self) -> None:
        """Give offsets to appends again."""

    def go_on(self, segment: SegmentWriter, end: int, last_append: int) -> None:
        """Give offsets to appends again, from offset `end` on, in this segment."""


Interruption = Callable[[SegmentWriter, SegmentWriter], Awaitable[SegmentWriter]]
"""Ends the writer's segment and begins the next one itself. Gets the present segment, and one that is prepared and not
begun; returns the one to go on with, which may be the present one if that is in no list."""


class Roller:
    """Begins, ends and replaces the segments of one writer. Call `begin` once, then `entry_sent` after each entry."""

    def __init__(self, claim: WriterClaim, policy: Policy, scope: TaskScope, events: RollerEvents) -> None:
        self._claim, self._policy, self._scope, self._events = claim, policy, scope, events
        self._loop = asyncio.get_running_loop()
        self._prepared: SegmentWriter | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._rolling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[bool]] = []
        self._delays = Delays(ROLL)
        self._current: SegmentWriter | None = None
        self._leaving: SegmentWriter | None = None
        self._recovery_time: Retries | None = None
        """The time that is left for segments that break one after the other without holding a record."""
        self.last_trouble = ""
        """Reason for which a roll is put off or a segment is being replaced; empty if neither is the case."""
        self.closed = self._over = False

    @property
    def busy(self) -> bool:
        """Return whether a roll or a repair is under way; until it ends the new segment is not listed."""
        return self._rolling is not None

    async def prepare(self) -> SegmentWriter:
        """Make a segment's ledger, which is in no list yet. Raises NotEnoughBookies or MetadataUnavailable."""
        claim = self._claim
        ledger, intent = await make_ledger(
            claim.client, claim.streams, claim.name, claim.uid, self._policy, epoch=claim.epoch
        )
        idle_s = claim.client.services.config.idle_lac_ms / 1000
        return SegmentWriter(ledger, intent, self._scope, self, idle_s=idle_s)

    def segment_acked(self, segment: SegmentWriter, next_offset: Offset) -> None:
        """Pass the acknowledgement on. A segment with records proves that bookies store something again."""
        if next_offset > segment.progress.base:
            self._recovery_time = None
        self._events.segment_acked(segment, next_offset)

    def segment_failed(self, segment: SegmentWriter, error: BuckramError) -> None:
        """Pass the failure on; the writer decides whether it asks for `repair`."""
        self._events.segment_failed(segment, error)

    def begin(self, current: SegmentWriter) -> None:
        """Start with the writer's first segment, which is not listed until its first entry is sent."""
        self._current = current

    def entry_sent(self) -> None:
        """After each entry, list the segment, prepare the next ledger, or roll, whichever is due."""
        current = self._current
        if current is None or self.closed:
            return
        if not current.progress.listed and self._rolling is None:
            self._rolling = self._scope.spawn(self._list(None, current), "list")
        if self._timer is None:
            self._arm()
        if current.bytes >= _PREPARE_AT * self._policy.roll_bytes:
            self._due(current.bytes >= self._policy.roll_bytes)

    def roll(self) -> asyncio.Future[bool]:
        """End the segment now. The future is resolved when the next one is listed; False if this one has no records."""
        future: asyncio.Future[bool] = self._loop.create_future()
        if self._current is None or not self._current.records:
            future.set_result(False)
        else:
            self._waiters.append(future)
            self._due(True)
        return future

    async def interrupt(self, work: Interruption) -> bool:
        """Let `work` end the present segment at a moment without any roll or repair and without appends under way.

        Appends wait meanwhile. Returns False if it could not be done now: no ledger could be prepared, the segment
        broke, which is repaired then as ever, or the writer ends.
        """
        if not await self._has_prepared():
            return False
        try:
            while True:
                await self._events.hold()
                if self.closed or self._current is None:
                    return False
                if busy := [task for task in (self._rolling, self._preparing) if task is not None]:
                    await asyncio.wait(busy)
                elif self._prepared is None:
                    return False  # A roll has taken it.
                elif self._events.at_rest():
                    break
                else:
                    await asyncio.sleep(0)
            done: asyncio.Future[bool] = self._loop.create_future()
            self._rolling = self._scope.spawn(self._interrupted(work, done), "insert")
            return await done
        except InvariantViolation:
            raise
        except BuckramError:
            return False  # The writer has ended with this error, and its appends get it.
        finally:
            self._events.let_go()

    async def _has_prepared(self) -> bool:
        """Wait for what is under way, and prepare a ledger if there is none. Returns whether there is one."""
        while busy := [task for task in (self._rolling, self._preparing) if task is not None]:
            await asyncio.wait(busy)
        if self._prepared is None:
            self._due(False)
            if self._preparing is not None:
                await asyncio.wait([self._preparing])
        return self._prepared is not None

    def follow(self, segment: SegmentWriter, end: int, last_append: int) -> None:
        """Let appends go on in this segment, from offset `end` on; called by an Interruption."""
        self._events.go_on(segment, end, last_append)

    async def _interrupted(self, work: Interruption, done: asyncio.Future[bool]) -> None:
        current, fresh = self._current, self._prepared
        assert current is not None
        assert fresh is not None
        self._prepared = None
        try:
            follower = await work(current, fresh)
        except WriteFailed as error:
            self.last_trouble = str(error)
            self._rolling, self._prepared = None, fresh
            self.repair(current)
            done.set_result(False)
            return
        except BuckramError as error:
            done.set_result(False)
            self._give_up(error)
            return
        if follower is current:
            self._prepared = fresh
        self._current, self._rolling = follower, None
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done.set_result(True)
        if self._over:
            await follower.ledger.abandon()
        elif follower.broken is not None:
            self.repair(follower)
        elif follower.records:
            self.entry_sent()  # What waited was sent before this one was the present segment.

    def repair(self, failed: SegmentWriter) -> None:
        """Replace the current segment, which broke for want of bookies and not because of another writer.

        No-op while a roll is under way and after `stop`: the code that ends the segment then finds out that it broke.
        """
        if self._rolling is None and not self.closed:
            self._rolling = self._scope.spawn(self._repair(failed), "repair")

    def fail(self, error: BuckramError) -> None:
        """Stop at once because the writer ended with `error`."""
        self.closed = self._over = True
        if self._timer is not None:
            self._timer.cancel()
        for segment in (self._current, self._leaving):
            if segment is not None:
                segment.rest()
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_exception(error)
                future.exception()

    async def stop(self) -> None:
        """Begin no further roll, wait for one that has begun, and discard the prepared ledger."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._preparing is not None:
            # A ledger that is cancelled half-made is left to the janitor, so wait a moment until it is complete.
            await asyncio.wait([self._preparing], timeout=_STOP_S)
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.wait([self._preparing])
        while self._rolling is not None and not self._rolling.done():  # A repair may follow a roll.
            await asyncio.wait([self._rolling])
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            await self.discard(prepared)

    async def abandon(self) -> None:
        """Abandon the prepared ledger and the one that is being sealed; the next writer or the janitor cleans up."""
        for segment in (self._prepared, self._leaving):
            if segment is not None:
                await segment.ledger.abandon()

    async def discard(self, segment: SegmentWriter) -> None:
        """Delete a ledger that was never listed. If that fails, a janitor or the next writer deletes it."""
        claim = self._claim
        await segment.ledger.abandon()
        try:
            await discard(claim.client, claim.streams, claim.uid, segment.intent)
        except InvariantViolation:
            raise
        except BuckramError as error:
            self.last_trouble = str(error)

    # -- when a roll is due -------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Start the timer for the moment at which the segment's age asks for a ledger, or for the roll."""
        current = self._current
        if current is None or not current.begun:
            return
        age = self._loop.time() - current.opened_at
        left = (_PREPARE_AT if self._prepared is None else 1.0) * self._policy.segment_s - age
        self._timer = self._loop.call_later(max(left, ROLL.first_s), self._fired)

    def _fired(self) -> None:
        self._timer = None
        current = self._current
        if self.closed or current is None:
            return
        if current.records:
            self._due(self._loop.time() - current.opened_at >= self._policy.segment_s)
        self._arm()

    def _due(self, now: bool) -> None:
        """Start to prepare a ledger unless that or a roll is under way. With `now` the roll follows at once."""
        if self.closed or self._preparing is not None or self._rolling is not None:
            return
        if self._prepared is None or now:
            self._preparing = self._scope.spawn(self._advance(now), "prepare")

    async def _advance(self, now: bool) -> None:
        """Prepare a ledger if there is none, then roll if it is due."""
        try:
            if self._prepared is None:
                self._prepared = await self.prepare()
            if now or self._waiters:
                # After the switch the roll cannot be put off, so it must not begin while the store is unreachable.
                at = await self._claim.streams.read(self._claim.name, within_s=_CHECK_S)
                check_epoch(str(self._claim.name), at.head, self._claim.epoch)
                self._switch()
            self._delays.reset()
            self.last_trouble = ""
        except (WriterLost, NoSuchStream) as error:
            self._events.fail(error)
        except InvariantViolation:
            raise
        except BuckramError as error:
            self.last_trouble = str(error)
            await asyncio.sleep(self._delays.take())
        finally:
            self._preparing = None
        if self._waiters and not self.closed:
            self._due(True)

    # -- the roll -----------------------------------------------------------------------------------------

    def _switch(self) -> None:
        """Send records to the prepared ledger from now on. This cannot be undone, and it is one step without await."""
        fresh = self._prepared
        if fresh is None or self._rolling is not None or self.closed:
            return
        self._prepared = None
        self._leaving = old = self._events.switch_segment(fresh)
        self._current = fresh
        self._rolling = self._scope.spawn(self._list(old, fresh), "roll")

    async def _list(
        self, old: SegmentWriter | None, fresh: SegmentWriter, sealed: tuple[LedgerId, Summary] | None = None
    ) -> None:
        """Close the old segment's ledger, then seal its row and list the new segment in one compare-and-set.

        `sealed` has the ledger and contents of an old segment whose ledger is closed already; `old` is None then.
        """
        claim = self._claim
        try:
            if old is not None:
                sealed, fresh = await self._end(old, fresh)
            await list_segment(claim, sealed, fresh)
        except BuckramError as error:
            self._give_up(error)
            return
        self._rolling = self._leaving = None
        waiters, self._waiters = (self._waiters, []) if old is not None else ([], self._waiters)
        self._events.segment_listed(fresh)
        for future in waiters:
            if not future.done():
                future.set_result(True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(fresh.broken, LedgerFenced):
            self._give_up(fresh.broken)
        elif fresh.broken is not None:
            self.repair(fresh)
        elif not self.closed:
            self.entry_sent()
            if self._waiters:
                self._due(True)

    async def _end(
        self, old: SegmentWriter, fresh: SegmentWriter
    ) -> tuple[tuple[LedgerId, Summary] | None, SegmentWriter]:
        """Close the old segment's ledger; returns its contents and the segment to list after it.

        If the ledger breaks and lacks records, `fresh` is replaced by another segment that begins with them.
        """
        try:
            return (old.ledger.ledger_id, await finish(old)), fresh
        except WriteFailed as error:
            self.last_trouble = str(error)
        broken = await recover_broken(self._claim, old, self._note_trouble)
        end = old.progress.base + broken.records
        if end == fresh.progress.base:
            self._events.segment_acked(old, end)
        else:
            # The offsets in `fresh` begin behind the records that the old segment lacks, and none of them was
            # released. So `fresh` is dropped, and all of these records are sent again in a third ledger.
            self._events.pause()
            unlisted = fresh
            unlisted.rest()
            await unlisted.ledger.abandon()
            self._current = fresh = await self._take()
            self._events.replace_segment(old, end, fresh, broken.producers)
            self._scope.spawn(self.discard(unlisted), "discard")
        self.last_trouble = ""
        return broken.sealed, fresh

    # -- a segment that broke -----------------------------------------------------------------------------

    async def _repair(self, failed: SegmentWriter) -> None:
        """Close the broken segment, find out what it holds, and send the other records again in a new one."""
        self.last_trouble = str(failed.broken)
        try:
            broken = await recover_broken(self._claim, failed, self._note_trouble)
            if not broken.records:
                if self._recovery_time is None or self._recovery_time.deadline + WITHIN_S < self._loop.time():
                    self._recovery_time = head_retries(WITHIN_S)
                await self._recovery_time.wait(failed.broken or WriteFailed(failed.ledger.ledger_id, "holds nothing"))
            fresh = await self._take()
        except BuckramError as error:
            self._give_up(error)
            return
        self.last_trouble = ""
        self._current = fresh
        self._events.replace_segment(failed, failed.progress.base + broken.records, fresh, broken.producers)
        if broken.sealed is None and not fresh.records:
            self._rolling = None  # The list does not change before the new segment has an entry.
            if fresh.broken is not None:
                self.repair(fresh)
            return
        await self._list(None, fresh, broken.sealed)

    async def _take(self) -> SegmentWriter:
        """Return the prepared segment, or make one now. Raises HandleClosed if the writer has ended meanwhile."""
        fresh, self._prepared = self._prepared, None
        if fresh is None:
            fresh = await retry_transient(self.prepare, self._note_trouble)
        if self._over:
            await fresh.ledger.abandon()  # The next writer or the janitor finds its intent and deletes it.
            raise HandleClosed(f"stream {self._claim.name}: the writer ended while its segment was replaced")
        return fresh

    def _note_trouble(self, why: str) -> None:
        self.last_trouble = why

    def _give_up(self, error: BuckramError) -> None:
        """End the writer after an error that a roll or repair cannot recover from; bugs are raised."""
        self._rolling = None
        if isinstance(error, InvariantViolation):
            raise error
        self._events.fail(as_writer_error(str(self._claim.name), error))
