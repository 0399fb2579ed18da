"""The outbox of a writer: what it appended in this turn of the loop, framed and handed to the lanes at the end of it.

From reading the LAC to the lanes is one step without await, and the ensemble is the window's of that step (2.2). Also
tells when a bookie is so slow to take bytes that the writer must wait for it. Room for appends is `append_limits.py`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from buckram.client.shared.lagging_replicas import Copies
from buckram.client.shared.send_batcher import LaneBatch
from buckram.client.shared.services import Services
from buckram.client.write.explicit_lac import ExplicitLac
from buckram.core.entries.entry import Digest
from buckram.core.ledgers.append import AppendWindow, Run, Send
from buckram.core.placement.latency import Probe
from buckram.core.security.encryption import OVERHEAD, Cipher
from buckram.core.wire.acks import AckSink
from buckram.core.wire.adds import cut_frames, frame_adds
from buckram.types import NO_ENTRY, BookieId, EntryId, Slot

RUN_BYTES = 256 * 1024
"""Runs are cut at about this size, so that room for appends comes back in small steps."""
_LANE_LIMIT_FACTOR = 4
"""A slow bookie may leave this many times max_pending_bytes lying about before appends wait for it, too."""

_Row = tuple[EntryId, int, int]
"""First id, and where its payloads start and stop."""


class OutboxOwner(AckSink, Protocol):
    """The writer whose entries an outbox sends: lanes deliver acknowledgements to it."""

    def on_unusable(self, error: BaseException) -> None:
        """Fail the writer, because nothing can be sent any more: the client was closed or forked, or there is a bug."""
        ...

    def on_writable(self) -> None:
        """Go on with waiting appends, because backpressure is over."""
        ...


class OnTurn(Protocol):
    def __call__(self, first: EntryId, count: int, size: int, /) -> None:
        """Take note of a turn that begins with `count` entries from `first` on, of `size` bytes."""
        ...


class Outbox:
    """The unsent appends of `owner`; `explicit_lac` is informed of the LAC that left with each run.

    `lane`: the name of the lanes that they take, so that other namespaces' adds do not wait behind them. `cipher` seals
    each entry when it gets its id; None: entries are stored as they are.
    """

    def __init__(
        self,
        window: AppendWindow,
        services: Services,
        digest: Digest,
        master_key: bytes,
        *,
        owner: OutboxOwner,
        explicit_lac: ExplicitLac,
        lane: str = "",
        cipher: Cipher | None = None,
    ) -> None:
        self._lane = lane
        self._window, self._services, self._digest, self._key = window, services, digest, master_key
        self._owner, self._explicit_lac, self._cipher = owner, explicit_lac, cipher
        self._loop = asyncio.get_running_loop()
        self._bodies: list[bytes] = []
        self._ids: list[EntryId] = []
        self._first: EntryId = 0
        self._size = 0
        self._targets: list[tuple[LaneBatch, Slot]] = []
        self._bookies: list[BookieId] = []
        """Those of the targets, in their order."""
        self.copies = Copies(services.pending_copies)
        self.check_client = services.guard
        self._mirrored = window.quorum.mirrored
        self._batcher = turn = services.batcher
        self.flush_now = partial(turn.flush_now, self)
        """Sends what was added now, unless other writers send in this turn, too."""
        if turn.entries_total is None:
            stats = services.runtime.stats
            turn.entries_total = stats.counter("buckram_client_appended_entries_total", "entries sent by writers")
            turn.lane_limit = _LANE_LIMIT_FACTOR * services.config.max_pending_bytes
            turn.bytes_total = stats.counter("buckram_client_appended_bytes_total", "payload bytes sent by writers")
        self.probe = Probe()
        """Probe that follows single entries to measure how long bookies take."""
        self.marked: EntryId = NO_ENTRY
        """An entry that was sent and is not acknowledged; NO_ENTRY: none is looked at."""
        self._marked_at = 0.0
        self.on_turn: OnTurn | None = None
        """Called with the first entries of each turn, if anything follows them."""
        self.backpressure = False
        """Some lane holds more than its share: appends wait. The owner's `on_writable` is called when that is over."""
        self._retarget()

    def add(self, bodies: Sequence[bytes], size: int) -> EntryId:
        """Give them the next ids and send them at the end of this turn; returns the first id."""
        if self._cipher is not None:
            bodies = self._cipher.seal_all(self._window.next_entry, bodies)
            size += OVERHEAD * len(bodies)
        first = self._window.enqueue(len(bodies), size)
        if not self._bodies:
            self._first = first
            self._batcher.ask(self)
            if self.on_turn is not None:
                self.on_turn(first, len(bodies), size)
        self._bodies += bodies
        self._size += size
        return first

    def add_at(self, entry: EntryId, body: bytes) -> None:
        """Add an entry with the caller's id. Raises DuplicateEntry."""
        if self._cipher is not None:
            body = self._cipher.seal(entry, body)
        self._window.enqueue_at(entry, len(body))
        if not self._bodies:
            self._batcher.ask(self)
        self._ids.append(entry)
        self._bodies.append(body)
        self._size += len(body)

    def resend(self, sends: Sequence[Send]) -> None:
        """Send these again, and from now on to the present ensemble: it changed, or a position became absent."""
        self._retarget()
        self._put(sends)
        self._batcher.send_loads([self])

    def clear(self) -> None:
        self._bodies, self._ids, self._size, self._targets = [], [], 0, []
        self.backpressure = False

    # -- end of the turn (Sender) -------------------------------------------------------------------------

    def send_failed(self, error: BaseException) -> None:
        self._owner.on_unusable(error)

    def has_full_lane(self) -> bool:
        limit, before = self._batcher.lane_limit, self.backpressure
        self.backpressure = any(load.lane.pending_bytes > limit for load, _ in self._targets)
        if before and not self.backpressure:
            self._owner.on_writable()
        return self.backpressure

    def send_now(self) -> None:
        bodies, size, window = self._bodies, self._size, self._window
        if not bodies or window.closed:
            return
        self._bodies, self._size = [], 0
        if not self._ids and size <= RUN_BYTES:
            self._send_run(self._first, bodies, window.length - size)
        else:
            ids, self._ids = self._ids, []
            length = window.length - size
            for first, start, stop in _rows(ids) if ids else _pieces(self._first, bodies):
                length = self._send_run(first, bodies[start:stop], length)
        self._explicit_lac.on_lac_sent(window.lac)
        now = self._loop.time()
        if self.probe.due(now) and not (window.deferred_sync or window.explicit_ids):
            self._follow(window.next_entry - 1, now)
        if self.marked < 0:
            self.marked, self._marked_at = window.next_entry - 1, now
        self._batcher.entries += len(bodies)
        self._batcher.bytes += size

    def _send_run(self, first: EntryId, bodies: list[bytes], length: int) -> int:
        window = self._window
        data, acks, after = frame_adds(self._digest, self._key, window.ledger_id, first, window.lac, length, bodies)
        count = len(bodies)
        last = first + count - 1
        if self._mirrored:
            sink = self._owner
            window.start(Run(first, last, data, acks, after - length))
            self.copies.unanswered += count * len(self._targets)
            for load, slot in self._targets:
                load.put(data, acks, (sink, slot, first, last))
        else:
            run = Run(first, last, cut_frames(data), acks, after - length)
            window.start(run)
            self._put(window.stripe(run))
        return after

    def _follow(self, entry: EntryId, now: float) -> None:
        window, took = self._window, self._services.bookies.recent.adds.took
        bookies = self._bookies
        if not self._mirrored:
            write_set = window.quorum.write_set(entry)
            bookies = [window.ensemble[position] for position, _ in window.live() if position in write_set]
        for bookie, seconds in self.probe.sent(entry, bookies, now):
            took(bookie, seconds, now)

    def probed(self, bookie: BookieId) -> None:
        """Record an acknowledgement of the followed entry."""
        now = self._loop.time()
        seconds = self.probe.acked(bookie, now)
        if seconds is not None:
            self._services.bookies.recent.adds.took(bookie, seconds, now)

    def marked_took(self) -> float:
        """Return how long the marked entry took, which is acknowledged now. The next entry that is sent is marked
        then."""
        self.marked = NO_ENTRY
        return self._loop.time() - self._marked_at

    def _put(self, sends: Sequence[Send]) -> None:
        loads = {slot: load for load, slot in self._targets} if sends else {}
        for send in sends:
            load = loads[send.slot]
            self.copies.unanswered += sum(last - first + 1 for first, last in send.rows)
            load.put(send.data, send.acks, (self._owner, send.slot, *send.rows[0]))
            if len(send.rows) > 1:
                load.runs += [(self._owner, send.slot, first, last) for first, last in send.rows[1:]]

    def _retarget(self) -> None:
        pool, window, turn = self._services.pool, self._window, self._batcher
        live = window.live()
        self._bookies = [window.ensemble[position] for position, _ in live]
        self._targets = [
            (turn.load(pool.lane(bookie, self._lane), window.deferred_sync), slot)
            for bookie, (_, slot) in zip(self._bookies, live, strict=True)
        ]
        self._explicit_lac.lanes = [load.lane for load, _ in self._targets]


def _rows(ids: list[EntryId]) -> list[_Row]:
    """Return rows of consecutive ids, in call order."""
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
