"""What a writer has appended in this turn of the loop, framed and handed to the lanes at the end of it.

From reading the LAC to the lanes is one step without await, and the ensemble is the window's of that step (2.2). Also
tells when a bookie is so slow to take bytes that the writer must wait for it. Room for appends is intake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from buckram.client.services import Services
from buckram.core.adds import AckSink, frame_adds
from buckram.core.append import AppendWindow, Run, Send
from buckram.core.entry import Digest
from buckram.errors import BuckramError
from buckram.net.pool import AddLane
from buckram.types import EntryId

RUN_BYTES = 256 * 1024
"""Runs are cut at about this size, so that room for appends comes back in small steps."""
_LANE_LIMIT_FACTOR = 4
"""A slow bookie may leave this many times max_pending_bytes lying about before appends wait for it, too."""

_Row = tuple[EntryId, int, int]
"""First id, and where its payloads start and stop."""


class Outbox:
    """`sink` gets the answers, `carried(lac)` is told of what left, `fail` of a client that is not to be used."""

    def __init__(
        self,
        window: AppendWindow,
        services: Services,
        digest: Digest,
        master_key: bytes,
        *,
        sink: AckSink,
        carried: Callable[[EntryId], None],
        fail: Callable[[BuckramError], None],
    ) -> None:
        self._window, self._services, self._digest, self._key = window, services, digest, master_key
        self._sink, self._carried, self._fail = sink, carried, fail
        self._loop = asyncio.get_running_loop()
        self._bodies: list[bytes] = []
        self._ids: list[EntryId] = []
        self._first: EntryId = 0
        self._size = 0
        self._scheduled = False
        self._targets: list[tuple[AddLane, int]] = []
        self._lane_limit = _LANE_LIMIT_FACTOR * services.config.max_pending_bytes
        stats = services.runtime.stats
        self._entries_total = stats.counter("buckram_client_appended_entries_total", "entries sent by writers")
        self._bytes_total = stats.counter("buckram_client_appended_bytes_total", "payload bytes sent by writers")
        self.stalled = False
        """Some lane holds more than its share; `recheck` says when that is over."""
        self._retarget()

    def add(self, bodies: Sequence[bytes], size: int) -> EntryId:
        """Give them the next ids and send them at the end of this turn; returns the first id."""
        first = self._window.enqueue(len(bodies), size)
        if not self._bodies:
            self._first = first
        self._bodies += bodies
        self._size += size
        self._schedule()
        return first

    def add_at(self, entry: EntryId, body: bytes) -> None:
        """With the caller's id; DuplicateEntry."""
        self._window.enqueue_at(entry, len(body))
        self._ids.append(entry)
        self._bodies.append(body)
        self._size += len(body)
        self._schedule()

    def resend(self, sends: Sequence[Send]) -> None:
        """The ensemble changed or a position became absent: send these, and from now on to who is there now."""
        self._retarget()
        self._deliver(sends)

    def recheck(self) -> bool:
        """Ask the lanes again; True if a stall has just ended."""
        if self.stalled and all(lane.pending_bytes <= self._lane_limit for lane, _ in self._targets):
            self.stalled = False
            return True
        return False

    def clear(self) -> None:
        self._bodies, self._ids, self._size, self._targets = [], [], 0, []
        self.stalled = False

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._scheduled = False
        bodies, ids, size = self._bodies, self._ids, self._size
        if not bodies or self._window.closed:
            return
        try:
            self._services.guard()
        except BuckramError as error:
            self._fail(error)
            return
        self._bodies, self._ids, self._size = [], [], 0
        if ids:
            rows = _rows(ids)
        elif size <= RUN_BYTES:
            rows = [(self._first, 0, len(bodies))]
        else:
            rows = _pieces(self._first, bodies)
        length = self._window.length - size
        for first, start, stop in rows:
            length = self._send_run(first, bodies if stop - start == len(bodies) else bodies[start:stop], length)
        self._carried(self._window.lac)
        self._entries_total.inc(len(bodies))
        self._bytes_total.inc(size)

    def _send_run(self, first: EntryId, bodies: list[bytes], length: int) -> int:
        window = self._window
        frames, acks, after = frame_adds(
            self._digest, self._key, window.ledger_id, first, window.lac, length, bodies
        )
        last = first + len(bodies) - 1
        data = frames[0] if first == last else b"".join(frames)
        run = Run(first, last, data, acks, after - length)
        window.start(run)
        if not window.quorum.mirrored:
            self._deliver(window.stripe(run))
            return after
        for lane, slot in self._targets:
            lane.send(data, acks, ((self._sink, slot, first, last),), deferred_sync=window.deferred_sync)
            if lane.pending_bytes > self._lane_limit:
                self.stalled = True
        return after

    def _deliver(self, sends: Sequence[Send]) -> None:
        if not sends:
            return
        lanes = {slot: lane for lane, slot in self._targets}
        for send in sends:
            lane = lanes[send.slot]
            runs = [(self._sink, send.slot, first, last) for first, last in send.rows]
            lane.send(send.data, send.acks, runs, deferred_sync=self._window.deferred_sync)
            if lane.pending_bytes > self._lane_limit:
                self.stalled = True

    def _retarget(self) -> None:
        pool, window = self._services.pool, self._window
        self._targets = [(pool.lane(window.ensemble[position]), slot) for position, slot in window.live()]


def _rows(ids: list[EntryId]) -> list[_Row]:
    """Rows of consecutive ids, in call order."""
    rows: list[_Row] = []
    start = 0
    for i in range(1, len(ids) + 1):
        if i == len(ids) or ids[i] != ids[i - 1] + 1:
            rows.append((ids[start], start, i))
            start = i
    return rows


def _pieces(first: EntryId, bodies: list[bytes]) -> list[_Row]:
    rows: list[_Row] = []
    start = size = 0
    for i, body in enumerate(bodies):
        if size and size + len(body) > RUN_BYTES:
            rows.append((first + start, start, i))
            start, size = i, 0
        size += len(body)
    rows.append((first + start, start, len(bodies)))
    return rows
