"""Room for appends: limits of what is not yet acknowledged, and the queue of appends that wait, in call order.

An append that waits is enqueued by the completion that makes room, not by its own task: so no other append can overtake
it, and ids follow the order of the calls. The answer to an add has only a code, so a writer whose quota is used up asks
a bookie for the details.

Not here: checking arguments (`client/write/engine.py`), sending (`client/write/outbox.py`), enforcing quotas
(`bookie/service/rate_limiter.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from buckram.client.write.completions import Completions, fail_future
from buckram.client.write.outbox import Outbox
from buckram.core.ledgers.append import AppendWindow
from buckram.core.wire.messages import QUOTAS, BookieInfoReply, GetBookieInfo
from buckram.errors import BuckramError, BufferFull, DuplicateEntry, QuotaExceeded
from buckram.runtime.net.pool import BookiePool
from buckram.types import BookieId, EntryId


class _Waiting:
    """An append that waits for room: its payloads, enqueued up to `done`, and their future. A flush has no payloads."""

    __slots__ = ("done", "entry_id", "future", "many", "payloads", "size")

    def __init__(
        self, payloads: Sequence[bytes], future: asyncio.Future[Any], many: bool, entry_id: EntryId | None
    ) -> None:
        self.payloads, self.future, self.many, self.entry_id = payloads, future, many, entry_id
        self.done = 0
        self.size = sum(map(len, payloads))


LONG_S, SHORT_S = 2.0, 1.0
"""An add that takes longer than LONG_S makes room shrink, so that no add waits until it is given up: some bookie holds
adds back, because their namespace has a rate, or cannot keep up. Below SHORT_S it grows again."""

_LEAST_BYTES, _LEAST_ENTRIES = 64 * 1024, 64


class AppendRoom:
    """Bounds one writer's unacknowledged appends in bytes and entries. An entry larger than the limit goes alone.

    `max_bytes` and `max_entries` are the most; there is less room while adds take long.
    """

    def __init__(
        self, window: AppendWindow, outbox: Outbox, completions: Completions, max_bytes: int, max_entries: int
    ) -> None:
        self._window, self._outbox, self._completions = window, outbox, completions
        self._max_bytes, self._max_entries = max_bytes, max_entries
        self._most = max_bytes, max_entries
        self.waiting: deque[_Waiting] = deque()

    def full(self, size: int, entry_id: EntryId | None = None) -> bool:
        """Return whether one more entry of `size` bytes has to wait. The explicit id that all others wait for never
        does."""
        window = self._window
        if entry_id is not None and entry_id == window.reachable + 1:
            return False
        if self.waiting or self._outbox.backpressure:
            return True
        pending = window.pending_entries
        return pending > 0 and (pending >= self._max_entries or window.pending_bytes + size > self._max_bytes)

    def took(self, seconds: float) -> None:
        """Fit the room to how long the followed add took: halve it after a slow one, double it again after a fast
        one."""
        window, (most_bytes, most_entries) = self._window, self._most
        if seconds > LONG_S:
            self._max_bytes = min(self._max_bytes, max(_LEAST_BYTES, window.pending_bytes // 2))
            self._max_entries = min(self._max_entries, max(_LEAST_ENTRIES, window.pending_entries // 2))
        elif seconds < SHORT_S and (self._max_bytes, self._max_entries) != self._most:
            self._max_bytes = min(most_bytes, 2 * self._max_bytes)
            self._max_entries = min(most_entries, 2 * self._max_entries)

    def buffer_full(self) -> BufferFull:
        window = self._window
        if self._outbox.backpressure:
            why = "a bookie is slow to take what was sent to it"
        elif window.pending_entries >= self._max_entries:
            why = f"{window.pending_entries} entries are not yet acknowledged, the limit is {self._max_entries}"
        else:
            return BufferFull(window.pending_bytes, self._max_bytes)
        return BufferFull(window.pending_bytes, self._max_bytes, f"{why}: await flush() or use append(), which waits")

    def enqueue(self, body: bytes, entry_id: EntryId | None, future: asyncio.Future[Any]) -> None:
        """Enqueue an append for which there is room. DuplicateEntry for an explicit id that is taken."""
        if entry_id is None:
            entry_id = self._outbox.add((body,), len(body))
        else:
            self._outbox.add_at(entry_id, body)
        self._completions.add(entry_id, entry_id, future)

    def wait(
        self,
        payloads: Sequence[bytes],
        future: asyncio.Future[Any],
        *,
        many: bool = False,
        entry_id: EntryId | None = None,
    ) -> None:
        """Enqueue when it is its turn and there is room, maybe at once. `many`: the result is the range of ids.

        Without payloads the future waits for everything before it.
        """
        self.waiting.append(_Waiting(payloads, future, many, entry_id))
        if len(self.waiting) == 1:
            self.enqueue_waiting()

    def enqueue_waiting(self) -> None:
        """Enqueue what fits now, in call order. Appends that were cancelled while they waited are left out."""
        waiting = self.waiting
        while waiting and (waiting[0].future.done() or self._take(waiting[0])):
            waiting.popleft()
        while waiting and self._window.explicit_ids and (item := self._next_explicit()) is not None:
            waiting.remove(item)
            self._take(item)

    def _next_explicit(self) -> _Waiting | None:
        """Return the waiting append that fills the first gap: without it nothing is acknowledged and room never
        comes."""
        wanted = self._window.reachable + 1
        return next((item for item in self.waiting if item.entry_id == wanted and not item.future.done()), None)

    def fail(self, error: BaseException) -> None:
        waiting = list(self.waiting)
        self.waiting.clear()
        for item in waiting:
            fail_future(item.future, error)

    def _take(self, item: _Waiting) -> bool:
        """Enqueue as much as fits; True when all is and its future is on the way."""
        if item.done < len(item.payloads):
            stop = self._stop(item)
            if stop == item.done:
                return False
            if item.entry_id is not None:
                try:
                    self._outbox.add_at(item.entry_id, item.payloads[0])
                except DuplicateEntry as error:
                    fail_future(item.future, error)
                    return True
            else:
                part = item.payloads if stop - item.done == len(item.payloads) else item.payloads[item.done : stop]
                size = item.size if stop == len(item.payloads) else sum(map(len, part))
                self._outbox.add(part, size)
                item.size -= size
            item.done = stop
            if stop < len(item.payloads):
                return False
        self._promise(item)
        return True

    def _stop(self, item: _Waiting) -> int:
        """Return up to which payload there is room."""
        window, payloads = self._window, item.payloads
        if item.entry_id is not None and item.entry_id == window.reachable + 1:
            return 1
        if self._outbox.backpressure:
            return item.done
        room = self._max_bytes - window.pending_bytes
        most = min(len(payloads), item.done + max(self._max_entries - window.pending_entries, 0))
        if most == len(payloads) and item.size <= room:
            return most
        stop = item.done
        while stop < most and len(payloads[stop]) <= room:
            room -= len(payloads[stop])
            stop += 1
        if stop == item.done and window.pending_entries == 0:
            return stop + 1  # larger than the limit, so it goes alone
        return stop

    def _promise(self, item: _Waiting) -> None:
        last = item.entry_id if item.entry_id is not None else self._window.next_entry - 1
        result: Any = None
        if item.many:
            result = range(last - len(item.payloads) + 1, last + 1)
        elif item.payloads:
            result = last
        if last <= self._window.pending_head:
            item.future.set_result(result)
        else:
            self._completions.add(last, result, item.future)


# -- details of a used-up quota -------------------------------------------------------------------------------

_WITHIN_S = 2.0


async def used_up(pool: BookiePool, bookie: BookieId, namespace: str) -> QuotaExceeded:
    """Return the error for a namespace that a bookie answered QUOTA_EXCEEDED for, with figures if the bookie gives
    them."""
    unknown = QuotaExceeded(namespace, "stored_bytes or connections")
    try:
        reply = await pool.call(bookie, GetBookieInfo(QUOTAS), timeout_s=_WITHIN_S)
    except BuckramError:
        return unknown
    figures = reply.figures if isinstance(reply, BookieInfoReply) else {}
    used, limit = (figures.get(f"{namespace}/stored_bytes/{what}") for what in ("used", "limit"))
    return unknown if used is None or limit is None else QuotaExceeded(namespace, "stored_bytes", used, limit)
