"""When a segment ends and how the next one takes over, without making appends wait.

Before the switch a ledger is prepared that is in no list. At the switch records go into it at once; none of them is
released before the old segment is complete, closed, and one compare-and-set has sealed it and listed the new one (M9).
A ledger that cannot be prepared puts the roll off; records go on into the old segment. A ledger that breaks ends its
segment early: what it does not hold is sent again in another one. Sealing and listing is sealing, looking what a broken
one holds is repair.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from buckram.core.backoff import ROLL, Delays
from buckram.core.streams.changes import check_epoch
from buckram.core.streams.head import Summary
from buckram.core.streams.policy import Policy
from buckram.core.streams.producers import ProducerTable
from buckram.errors import BuckramError, HandleClosed, InvariantViolation, NoSuchStream, WriteFailed, WriterLost
from buckram.net.retry import Retries
from buckram.net.tasks import TaskScope
from buckram.streams.shared.claim import Claim
from buckram.streams.shared.ledgers import discard, make_ledger
from buckram.streams.shared.metadata import head_retries
from buckram.streams.write.repair import retry_transient, settle
from buckram.streams.write.sealing import WITHIN_S, ended, finish, list_segment
from buckram.streams.write.segment import SegmentWriter
from buckram.types import LedgerId

_PREPARE_AT = 0.75
_CHECK_S = 1.0
_STOP_S = 2.0


class RollerEvents(Protocol):
    """What the roller tells its stream's writer (`StreamEngine`)."""

    def switch_segment(self, fresh: SegmentWriter) -> SegmentWriter | None:
        """Write to `fresh` from now on; returns the segment before, if there was one."""

    def replace_segment(self, failed: SegmentWriter, end: int, fresh: SegmentWriter, table: ProducerTable) -> None:
        """Write what `failed` has not stored to `fresh`; `end` is the first offset that goes there."""

    def segment_listed(self, segment: SegmentWriter) -> None:
        """The stream's head names the segment."""

    def fail(self, error: BuckramError) -> None:
        """The stream cannot be written to any more."""

    def segment_acked(self, segment: SegmentWriter, next_offset: int) -> None: ...

    def segment_failed(self, segment: SegmentWriter, error: BuckramError) -> None: ...

    def pause(self) -> None:
        """Send nothing until a segment is switched or replaced."""


class Roller:
    """`sent` after each entry; `begin` once at the start. `events.fail` ends the writer."""

    def __init__(self, claim: Claim, policy: Policy, scope: TaskScope, events: RollerEvents) -> None:
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
        """How long segments may break one after the other that hold nothing."""
        self.last_trouble = ""
        """Why the last roll was put off; empty when none is."""
        self.closed = self._over = False

    @property
    def busy(self) -> bool:
        """A roll has begun and not ended: the new segment is not listed."""
        return self._rolling is not None

    async def prepare(self) -> SegmentWriter:
        """A ledger in no list. Errors: NotEnoughBookies, MetadataUnavailable."""
        claim = self._claim
        ledger, intent = await make_ledger(
            claim.client, claim.streams, claim.name, claim.uid, self._policy, epoch=claim.epoch
        )
        idle_s = claim.client.services.config.idle_lac_ms / 1000
        return SegmentWriter(ledger, intent, self._scope, self._acked, self._events.segment_failed, idle_s=idle_s)

    def _acked(self, segment: SegmentWriter, next_offset: int) -> None:
        if next_offset > segment.progress.base:
            self._recovery_time = None
        self._events.segment_acked(segment, next_offset)

    def begin(self, current: SegmentWriter) -> None:
        """The writer's first segment: unlisted until it gets its first entry."""
        self._current = current

    def sent(self) -> None:
        """Another entry went to the current segment: look whether something is due."""
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
        """End the segment now. The future: False when it has no records, so nothing was done."""
        future: asyncio.Future[bool] = self._loop.create_future()
        if self._current is None or not self._current.records:
            future.set_result(False)
        else:
            self._waiters.append(future)
            self._due(True)
        return future

    def repair(self, failed: SegmentWriter) -> None:
        """The current segment broke, not because of another writer: go on in a new one. Not while a roll is under way
        or after `stop`: who ends the segment then finds out."""
        if self._rolling is None and not self.closed:
            self._rolling = self._scope.spawn(self._repair(failed), "repair")

    def fail(self, error: BuckramError) -> None:
        """The writer ended."""
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
        """No roll begins any more; one that has begun is waited for. What was prepared is discarded."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._preparing is not None:
            # Half-made ledgers are the janitor's work, so it gets a moment to become whole.
            await asyncio.wait([self._preparing], timeout=_STOP_S)
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.wait([self._preparing])
        while self._rolling is not None and not self._rolling.done():  # a repair may follow on a roll
            await asyncio.wait([self._rolling])
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            await self.discard(prepared)

    async def abandon(self) -> None:
        """Let go of ledgers that are not in use yet or any more, as they are."""
        for segment in (self._prepared, self._leaving):
            if segment is not None:
                await segment.ledger.abandon()

    async def discard(self, segment: SegmentWriter) -> None:
        """Delete a ledger that was never listed; else a janitor or the next writer does."""
        claim = self._claim
        await segment.ledger.abandon()
        try:
            await discard(claim.client, claim.streams, claim.uid, segment.intent)
        except InvariantViolation:
            raise
        except BuckramError as error:
            self.last_trouble = str(error)

    # -- time ---------------------------------------------------------------------------------------------

    def _arm(self) -> None:
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
        """Prepare; `now`: and switch as soon as that is done."""
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
                # A look at the store before the point of no return: a roll must not begin while it is away.
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
        """The point of no return, one step: records go into the prepared ledger from now on."""
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
        """Complete and close the old segment (unless it is `sealed` already), then seal it and list the new one."""
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
        if fresh.broken is not None:
            self.repair(fresh)
        elif not self.closed:
            self.sent()
            if self._waiters:
                self._due(True)

    async def _end(
        self, old: SegmentWriter, fresh: SegmentWriter
    ) -> tuple[tuple[LedgerId, Summary] | None, SegmentWriter]:
        """Complete and close the old segment. If it breaks and lacks records, they come first in another new one."""
        try:
            return (old.ledger.ledger_id, await finish(old)), fresh
        except WriteFailed as error:
            self.last_trouble = str(error)
        broken = await settle(self._claim, old, self._trouble)
        end = old.progress.base + broken.records
        if end == fresh.progress.base:
            self._events.segment_acked(old, end)
        else:
            # Nothing of the new one was released, and its offsets come too late for what the old one lacks.
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
        """Close the broken segment, find out what it holds, and send the rest again in a new one."""
        self.last_trouble = str(failed.broken)
        try:
            broken = await settle(self._claim, failed, self._trouble)
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
            self._rolling = None  # nothing to list yet
            if fresh.broken is not None:
                self.repair(fresh)
            return
        await self._list(None, fresh, broken.sealed)

    async def _take(self) -> SegmentWriter:
        """The prepared ledger, or one that is made now."""
        fresh, self._prepared = self._prepared, None
        if fresh is None:
            fresh = await retry_transient(self.prepare, self._trouble)
        if self._over:
            await fresh.ledger.abandon()  # the next writer or the janitor finds its intent
            raise HandleClosed(f"stream {self._claim.name}: the writer ended while its segment was replaced")
        return fresh

    def _trouble(self, why: str) -> None:
        self.last_trouble = why

    def _give_up(self, error: BuckramError) -> None:
        self._rolling = None
        if isinstance(error, InvariantViolation):
            raise error
        self._events.fail(ended(str(self._claim.name), error))
