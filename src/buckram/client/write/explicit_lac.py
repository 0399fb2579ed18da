"""Publishing an idle writer's last confirmed entry (explicit LAC), so that readers see it without another append (L7).

Entries normally carry the LAC to readers by themselves. What is confirmed and carried by no entry is published once the
writer has been idle: by packets of which those of all writers leave together, or by requests (WRITE_LAC) where a bookie
does not take packets. Not here: the common timer (`client/shared/lac_batcher.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.ledgers.append import AppendWindow
from buckram.core.wire.client_protocol import LacPacket
from buckram.core.wire.lacs import encode_lac
from buckram.core.wire.messages import WriteLac
from buckram.errors import BuckramError, Code
from buckram.runtime.net.pool import AddLane
from buckram.runtime.process.tasks import TaskScope
from buckram.types import NO_ENTRY, BookieId, EntryId, Position

_LONGEST_S = 5.0
_LOOK_S = 0.25
"""Time after which packets without enough replies are sent again, seconds; the bookies or connections may be gone."""

_ROUNDING_S = 1e-4


class ExplicitLac:
    """`on_lac_sent` is told of every run sent, `head_moved` of every acknowledgement; both are cheap."""

    def __init__(
        self,
        window: AppendWindow,
        services: Services,
        scope: TaskScope,
        digest: Digest,
        master_key: bytes,
    ) -> None:
        self._window, self._pool, self._batcher, self._scope = window, services.pool, services.lacs, scope
        self._digest, self._key, self._idle_s = digest, master_key, services.config.idle_lac_ms / 1000
        self._name = (window.ledger_id, digest.birth) if digest.birth else None
        self._loop = asyncio.get_running_loop()
        self.lanes: Sequence[AddLane] = ()
        """Lanes to the present members that are written to."""
        self._published: EntryId = NO_ENTRY
        self._last_append = 0.0
        self._listed = False
        """A look is due when the writer has been idle."""
        self._look_at = float("inf")
        """Time of the next look that counts; lists of the batcher may have others, which were replaced."""
        self._asked: EntryId = NO_ENTRY
        """LAC whose replies are waited for; NO_ENTRY if none is."""
        self._unanswered: dict[BookieId, Position] = {}
        self._stored = 0
        self._retry_s = self._idle_s

    def on_lac_sent(self, lac: EntryId) -> None:
        """Called when an entry that carries `lac` was sent."""
        if self._idle_s:
            if lac > self._published:
                self._published = lac
            self._last_append = self._loop.time()

    def head_moved(self) -> None:
        if not self._listed and self._idle_s and self._asked < 0:
            self._listed = True
            self._look(self._loop.time() + self._idle_s)

    def close(self) -> None:
        self._idle_s = 0.0
        self._look_at = float("inf")
        self._batcher.forget(self._window.ledger_id, self)

    def _look(self, when: float) -> None:
        self._look_at = when
        self._batcher.at(when, self)

    def take(self, now: float) -> LacPacket | None:
        """Return the packet to send to `lanes` now, or None. Called by the batcher."""
        if now < self._look_at - _ROUNDING_S:
            return None
        self._look_at, self._listed = float("inf"), False
        window = self._window
        if window.closed or window.lac <= self._published:
            self._asked = NO_ENTRY
            return None
        due = self._last_append + self._idle_s
        if now < due:
            self._listed, self._asked = True, NO_ENTRY
            self._look(due)
            return None
        self._asked = window.lac
        self._retry_s = min(self._retry_s * 2, _LONGEST_S)
        if not all(lane.takes_lacs() for lane in self.lanes):
            self._scope.spawn(self._request(), "explicit LAC")
            return None
        # To all members, not only to the write set: a tail that waits for an entry before this one asks others first.
        self._unanswered, self._stored = {window.ensemble[p]: p for p, _ in window.live()}, 0
        self._look(now + max(self._retry_s, _LOOK_S))
        self._batcher.sent(window.ledger_id, self)
        return self._name, encode_lac(self._key, self._digest.seal_lac(window.ledger_id, window.lac))

    def answered(self, bookie: BookieId, lac: EntryId, code: Code) -> None:
        """Take note of the reply of a bookie to a packet."""
        position = self._unanswered.pop(bookie, None) if lac == self._asked else None
        if position is None:
            return
        quorum = self._window.quorum
        self._stored += code is Code.OK and quorum.holds(position, lac)
        if self._stored >= quorum.ack_quorum:
            self._ended(True)
        elif not self._unanswered:
            self._ended(False)

    def _ended(self, stored: bool) -> None:
        lac, self._asked = self._asked, NO_ENTRY
        self._unanswered, self._look_at = {}, float("inf")
        if stored:
            self._published = max(self._published, lac)
            self._retry_s = self._idle_s
            if self._window.lac > self._published:
                self.head_moved()
        elif self._idle_s and not self._window.closed:
            # Best effort, but a reader may wait for it: again, more and more rarely, while nothing else carries it.
            self._listed = True
            self._look(self._loop.time() + self._retry_s)

    # -- bookies that do not take packets -----------------------------------------------------------------

    async def _request(self) -> None:
        window, stored = self._window, 0
        # Value, seal and addressees in one step: the request must say what was confirmed when it was made.
        lac = self._asked = window.lac
        request = WriteLac(
            window.ledger_id, lac, self._key, self._digest.seal_lac(window.ledger_id, lac), self._digest.birth
        )
        asked = {
            self._scope.spawn(self._write(window.ensemble[p], request), f"explicit LAC to {window.ensemble[p]}"): p
            for p, _ in window.live()
        }
        needed = window.quorum.ack_quorum
        # Not for all: the next one must not wait for a bookie that hangs.
        while asked and stored < needed:
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in asked if task.done()]:
                stored += window.quorum.holds(asked.pop(task), lac) and task.result()
        self._ended(stored >= needed)

    async def _write(self, bookie: BookieId, request: WriteLac) -> bool:
        try:
            return (await self._pool.call(bookie, request)).code is Code.OK
        except BuckramError:
            return False
