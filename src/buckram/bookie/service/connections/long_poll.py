"""Long polls: requests that wait until the last confirmed entry (LAC) of a ledger passes a value.

A waiter is woken exactly once: by a LAC above its mark, by a fence or deletion, or by its time-out. A LAC at or below
its mark leaves it waiting.

A LAC that arrives with an add is proven by the added entry itself, which was sent after that LAC was acknowledged. The
answer need not wait until this bookie has synced the entry, because it says nothing about the entry.
Not here: what a woken request is answered (`bookie/service/entries/reads.py`).
"""

from __future__ import annotations

import asyncio
import enum
from typing import Protocol

from buckram.seams import Clock
from buckram.types import EntryId, LedgerId

LONGEST_WAIT_S = 600.0


class Woken(enum.Enum):
    ADVANCED = 1
    STATE_CHANGED = 2
    TIMED_OUT = 3


class Waiter:
    """One waiting request, which wants a LAC greater than `above`."""

    __slots__ = ("above", "done", "ledger_id", "timer")

    def __init__(self, ledger_id: LedgerId, above: EntryId, done: PollCallback) -> None:
        self.ledger_id, self.above, self.done = ledger_id, above, done
        self.timer: asyncio.TimerHandle | None = None


class LacProof(Protocol):
    """Finds a stored entry whose header has a LAC above `above`; None if it is not at hand."""

    def __call__(self, above: EntryId, /) -> bytes | None: ...


class PollCallback(Protocol):
    """Called once when a waiter is woken.

    `advanced_ms` is the wall time in milliseconds; it and `proof` are None unless the LAC advanced.
    """

    def __call__(self, waiter: Waiter, why: Woken, advanced_ms: int | None, proof: LacProof | None, /) -> None: ...


class LongPolls:
    """`waiting` maps a ledger to its waiters; the add path looks into it once per run."""

    def __init__(self, clock: Clock, limit: int) -> None:
        self._clock, self._limit = clock, limit
        self.waiting: dict[LedgerId, dict[Waiter, None]] = {}
        self.count = 0
        self._woken: list[Waiter] = []

    def wait(self, ledger_id: LedgerId, above: EntryId, timeout_s: float, done: PollCallback) -> Waiter | None:
        """Wait for a LAC greater than `above`; the caller has just seen that it is not. None when too many wait."""
        if self.count >= self._limit:
            return None
        waiter = Waiter(ledger_id, above, done)
        self.waiting.setdefault(ledger_id, {})[waiter] = None
        self.count += 1
        delay = min(max(timeout_s, 0.0), LONGEST_WAIT_S)
        waiter.timer = asyncio.get_running_loop().call_later(delay, self._timed_out, waiter)
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        """Remove a waiter whose connection is gone; it is not called any more."""
        self._remove(waiter)
        waiter.done = _ignore

    def lac_advanced(self, ledger_id: LedgerId, lac: EntryId, proof: LacProof | None = None) -> None:
        """Wake the waiters now, so that their replies are sent before the commit starts."""
        waiters = self.waiting.get(ledger_id)
        if waiters:
            woken = [waiter for waiter in waiters if lac > waiter.above]
            if woken:
                now = self._clock.wall_us() // 1000
                for waiter in woken:
                    self._remove(waiter)
                for waiter in woken:
                    waiter.done(waiter, Woken.ADVANCED, now, proof)

    def state_changed(self, ledger_id: LedgerId) -> None:
        """Wake all waiters of a ledger that was fenced or deleted, because it may not grow any more."""
        waiters = self.waiting.get(ledger_id)
        if waiters:
            self._wake(list(waiters))

    def close(self) -> None:
        """Remove all waiters without calling them."""
        for waiters in list(self.waiting.values()):
            for waiter in list(waiters):
                self.cancel(waiter)

    def _wake(self, waiters: list[Waiter]) -> None:
        # The callbacks run later, because a fence may be in the middle of its work. One call serves a whole turn.
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._fire)
        for waiter in waiters:
            self._remove(waiter)
            self._woken.append(waiter)

    def _fire(self) -> None:
        woken, self._woken = self._woken, []
        for waiter in woken:
            waiter.done(waiter, Woken.STATE_CHANGED, None, None)

    def _timed_out(self, waiter: Waiter) -> None:
        self._remove(waiter)
        waiter.done(waiter, Woken.TIMED_OUT, None, None)

    def _remove(self, waiter: Waiter) -> None:
        waiters = self.waiting.get(waiter.ledger_id)
        if waiters is None or waiter not in waiters:
            return
        del waiters[waiter]
        self.count -= 1
        if not waiters:
            del self.waiting[waiter.ledger_id]
        if waiter.timer is not None:
            waiter.timer.cancel()
            waiter.timer = None


def _ignore(waiter: Waiter, why: Woken, at_ms: int | None, proof: LacProof | None) -> None:
    """Stand in for the callback of a cancelled waiter, which may be scheduled already."""
