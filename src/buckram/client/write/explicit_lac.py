"""Publishing an idle writer's last confirmed entry (WRITE_LAC), so that readers see it without another append (L7).

Entries normally carry the LAC to readers by themselves. One timer per writer, armed only while something is confirmed
that no entry has carried, and re-armed lazily: never per entry.
"""

from __future__ import annotations

import asyncio

from buckram.core.entries.entry import Digest
from buckram.core.ledgers.append import AppendWindow
from buckram.core.wire.messages import WriteLac
from buckram.errors import BuckramError, Code
from buckram.runtime.net.pool import BookiePool
from buckram.runtime.process.tasks import TaskScope
from buckram.types import NO_ENTRY, BookieId, EntryId

_LONGEST_S = 5.0


class ExplicitLac:
    """`on_lac_sent` is told of every run sent, `head_moved` of every acknowledgement; both are cheap."""

    def __init__(
        self,
        window: AppendWindow,
        pool: BookiePool,
        scope: TaskScope,
        digest: Digest,
        master_key: bytes,
        idle_s: float,
    ) -> None:
        self._window, self._pool, self._scope = window, pool, scope
        self._digest, self._key, self._idle_s = digest, master_key, idle_s
        self._loop = asyncio.get_running_loop()
        self._published: EntryId = NO_ENTRY
        self._last_append = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._sending = False
        self._retry_s = idle_s

    def on_lac_sent(self, lac: EntryId) -> None:
        """Called when an entry that carries `lac` was sent."""
        if self._idle_s:
            if lac > self._published:
                self._published = lac
            self._last_append = self._loop.time()

    def head_moved(self) -> None:
        if self._timer is None and self._idle_s and not self._sending:
            self._timer = self._loop.call_later(self._idle_s, self._fired)

    def close(self) -> None:
        self._idle_s = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fired(self) -> None:
        self._timer = None
        window = self._window
        if window.closed or window.lac <= self._published:
            return
        due = self._last_append + self._idle_s
        if self._loop.time() < due:
            # An absolute time: a rest too small to move the clock would fire again and again.
            self._timer = self._loop.call_at(due, self._fired)
            return
        self._sending = True
        self._scope.spawn(self._publish(), "explicit LAC")

    async def _publish(self) -> None:
        window = self._window
        # Value, seal and addressees in one step: the packet must say what was confirmed when it was made.
        lac = window.lac
        request = WriteLac(
            window.ledger_id, lac, self._key, self._digest.seal_lac(window.ledger_id, lac), self._digest.birth
        )
        # To all members, not only to the write set: a tail that waits for an entry before this one asks others first.
        asked = {
            self._scope.spawn(self._write(window.ensemble[p], request), f"explicit LAC to {window.ensemble[p]}"): p
            for p, _ in window.live()
        }
        needed, stored = window.quorum.ack_quorum, 0
        try:
            # Not for all: the next one must not wait for a bookie that hangs.
            while asked and stored < needed:
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in asked if task.done()]:
                    stored += window.quorum.holds(asked.pop(task), lac) and task.result()
        finally:
            self._sending = False
        delay = self._idle_s
        if stored >= needed:
            self._published = max(self._published, lac)
            self._retry_s = self._idle_s
        else:
            # Best effort, but a reader may wait for it: again, more and more rarely, while nothing else carries it.
            self._retry_s = delay = min(self._retry_s * 2, _LONGEST_S)
        if self._idle_s and not window.closed and window.lac > self._published and self._timer is None:
            self._timer = self._loop.call_later(delay, self._fired)

    async def _write(self, bookie: BookieId, request: WriteLac) -> bool:
        try:
            return (await self._pool.call(bookie, request)).code is Code.OK
        except BuckramError:
            return False
