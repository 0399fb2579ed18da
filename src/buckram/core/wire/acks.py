"""Matches the bytes that a bookie sends with the expected replies to adds.

A batch of runs costs one comparison of bytes. Single entries cost nothing unless replies are errors or out of order.

Not here: sending adds (`core/wire/adds.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from buckram.core.wire.adds import ACK, ACK_BYTES
from buckram.errors import BuckramError, Code
from buckram.types import BookieId, EntryId, LedgerId, Slot

_ACK_START = b"\0\0\0\x18\x02\x01\0\0"


class AckSink(Protocol):
    """The sender of a ledger's adds on a lane. Each entry of each run is reported exactly once, in ranges, with the
    slot that it was sent for.

    The methods are called on the loop, never from inside the call that sent the run.
    """

    name: tuple[LedgerId, bytes] | None
    """The ledger and its birth, for bookies that compare births; None if the birth is unknown."""

    def acked(self, slot: Slot, bookie_id: BookieId, first: EntryId, last: EntryId) -> None: ...
    def add_failed(
        self, slot: Slot, bookie_id: BookieId, first: EntryId, last: EntryId, error: BuckramError
    ) -> None: ...


SentRun: TypeAlias = tuple[AckSink, Slot, EntryId, EntryId]
"""(sink, slot, first, last). A plain tuple, because one is made for each run."""
AckEvent: TypeAlias = tuple[AckSink, Slot, EntryId, EntryId, Code | None, LedgerId]
"""(sink, slot, first, last, code, ledger). Code None means no reply in time. The ledger is -1 if the code is OK. A
plain tuple, because one is made for each run."""
_Batch: TypeAlias = tuple[bytes, Sequence[SentRun], float]  # expected answers, their runs, when they are overdue


class _Waiting:
    """A range of one run that waits for its replies, in any order."""

    __slots__ = ("expires", "first", "last", "sink", "slot")

    def __init__(self, sink: AckSink, slot: Slot, first: EntryId, last: EntryId, expires: float) -> None:
        self.sink, self.slot, self.first, self.last, self.expires = sink, slot, first, last, expires


class AckMatcher:
    """Matches received bytes with the expected replies.

    A bookie mostly answers everything with OK in the order of sending; then whole batches are compared as bytes.
    Otherwise a batch is split into ranges per ledger, which are found by (ledger, entry) in any order.
    """

    def __init__(self) -> None:
        self._queue: deque[_Batch] = deque()
        # How far the first batch is answered: bytes of its expected replies, run, entry in that run.
        self._offset = self._index = 0
        self._next_entry: EntryId = -1
        self._ranges: dict[LedgerId, list[_Waiting]] = {}
        self._answered = self._noticed = float("-inf")
        """Due times of the latest adds that were answered, now and at the last call of `look`."""
        self._moved = False
        self._patient_until = float("-inf")

    @property
    def idle(self) -> bool:
        """Return whether no reply is outstanding."""
        return not self._queue and not self._ranges

    def expect(self, acks: bytes, runs: Sequence[SentRun], expires: float) -> None:
        """Expect `acks`, the OK replies to `runs` in order. There is at least one run, each with at least one entry."""
        self._queue.append((acks, runs, expires))

    def sole(self, chunk: bytes) -> SentRun | None:
        """Return the only run of the first batch if the chunk is exactly its OK replies; the run is done then."""
        queue = self._queue
        if queue and not self._offset:
            acks, runs, expires = queue[0]
            if chunk == acks and len(runs) == 1:
                queue.popleft()
                self._answered = expires
                return runs[0]
        return None

    def take(self, buffer: bytes, offset: int, events: list[AckEvent]) -> int:
        """Consume whole ADD replies from `offset` on and append them to `events`.

        Returns the offset of the first frame that is no ADD reply, not an expected one, or not complete.
        """
        queue = self._queue
        while len(buffer) - offset >= ACK_BYTES:
            if queue:
                acks, runs, expires = queue[0]
                if not self._offset and buffer.startswith(acks, offset):
                    queue.popleft()
                    self._answered = expires
                    offset += len(acks)
                    for sink, slot, first, last in runs:
                        emit_ok(events, sink, slot, first, last)
                    continue
                matched = self._common_frames(acks, buffer, offset)
                if matched:
                    offset += matched * ACK_BYTES
                    self._advance(runs, matched, events)
                    continue
            taken = self._take_any_order(buffer, offset, events)
            if not taken:
                break
            offset += taken
        return offset

    def _common_frames(self, acks: bytes, buffer: bytes, offset: int) -> int:
        """Return how many frames at `offset` equal the next expected ones."""
        begin = self._offset
        most = min(len(buffer) - offset, len(acks) - begin) // ACK_BYTES
        if buffer.startswith(acks[begin : begin + most * ACK_BYTES], offset):
            return most
        least = 0
        while most - least > 1:  # Equal up to `least`, different somewhere before `most`.
            middle = (least + most) // 2
            part = acks[begin + least * ACK_BYTES : begin + middle * ACK_BYTES]
            if buffer.startswith(part, offset + least * ACK_BYTES):
                least = middle
            else:
                most = middle
        return least

    def _advance(self, runs: Sequence[SentRun], frames: int, events: list[AckEvent]) -> None:
        """Report the next `frames` replies to the first batch, which are all OK."""
        self.note(self._queue[0][2])
        while frames:
            sink, slot, first, last = runs[self._index]
            if self._next_entry >= 0:
                first = self._next_entry
            count = min(frames, last - first + 1)
            emit_ok(events, sink, slot, first, first + count - 1)
            self._offset += count * ACK_BYTES
            frames -= count
            if first + count <= last:
                self._next_entry = first + count
            else:
                self._index += 1
                self._next_entry = -1
        if self._index == len(runs):
            self._drop_first()

    def _drop_first(self) -> None:
        self._queue.popleft()
        self._offset = self._index = 0
        self._next_entry = -1

    def _take_any_order(self, buffer: bytes, offset: int, events: list[AckEvent]) -> int:
        """Take one reply and those that continue it. Returns the bytes taken, 0 for an unexpected or other frame."""
        if not buffer.startswith(_ACK_START, offset):
            return 0
        _, header, number, ledger, entry = ACK.unpack_from(buffer, offset)
        waiting = self._find(ledger, entry)
        if waiting is None and self._queue:
            while self._queue:
                self._take_first_apart()
            waiting = self._find(ledger, entry)
        if waiting is None:
            return 0
        self.note(waiting.expires)
        last, limit = entry, waiting.last
        after = offset + ACK_BYTES
        while last < limit and buffer.startswith(ACK.pack(24, header, number, ledger, last + 1), after):
            last += 1
            after += ACK_BYTES
        if number == 0:
            emit_ok(events, waiting.sink, waiting.slot, entry, last)
        else:
            events.append((waiting.sink, waiting.slot, entry, last, Code.from_v2(number), ledger))
        self._remove(ledger, waiting, entry, last)
        return after - offset

    def _find(self, ledger: LedgerId, entry: EntryId) -> _Waiting | None:
        for waiting in self._ranges.get(ledger, ()):
            if waiting.first <= entry <= waiting.last:
                return waiting
        return None

    def _remove(self, ledger: LedgerId, waiting: _Waiting, first: EntryId, last: EntryId) -> None:
        ranges = self._ranges[ledger]
        if first > waiting.first and last < waiting.last:
            rest = _Waiting(waiting.sink, waiting.slot, last + 1, waiting.last, waiting.expires)
            ranges.insert(ranges.index(waiting) + 1, rest)
            waiting.last = first - 1
        elif first > waiting.first:
            waiting.last = first - 1
        elif last < waiting.last:
            waiting.first = last + 1
        else:
            ranges.remove(waiting)
            if not ranges:
                del self._ranges[ledger]

    def _take_first_apart(self) -> None:
        """Split the outstanding part of the first batch into ranges."""
        acks, runs, expires = self._queue[0]
        offset = self._offset
        for i in range(self._index, len(runs)):
            sink, slot, first, last = runs[i]
            if i == self._index and self._next_entry >= 0:
                first = self._next_entry
            ledger = int.from_bytes(acks[offset + 12 : offset + 20], "big", signed=True)
            self._ranges.setdefault(ledger, []).append(_Waiting(sink, slot, first, last, expires))
            offset += (last - first + 1) * ACK_BYTES
        self._drop_first()

    def note(self, expires: float) -> None:
        """Record that an add that was due by `expires` was answered."""
        self._moved = True
        self._answered = max(self._answered, expires)

    def is_overdue(self, expires: float, now: float) -> bool:
        """Return whether an add that is due by `expires` counts as unanswered.

        A bookie that holds adds back answers them in their order: as long as it answers those that were sent before,
        this one is on its way.
        """
        return expires <= now and not (expires >= self._answered and now < self._patient_until)

    def look(self, now: float, patience_s: float) -> None:
        """Give outstanding adds `patience_s` more if adds before them were answered since the last look. Call before
        `expire`.
        """
        if self._moved or self._answered != self._noticed:
            self._moved, self._noticed = False, self._answered
            self._patient_until = now + patience_s

    def expire(self, now: float) -> list[AckEvent]:
        """Return all that was due by `now` as unanswered; later replies to it are unexpected frames."""
        while self._queue and self.is_overdue(self._queue[0][2], now):
            self._take_first_apart()
        events: list[AckEvent] = []
        for ledger in list(self._ranges):
            rest = []
            for waiting in self._ranges[ledger]:
                if self.is_overdue(waiting.expires, now):
                    events.append((waiting.sink, waiting.slot, waiting.first, waiting.last, None, ledger))
                else:
                    rest.append(waiting)
            self._ranges[ledger] = rest
            if not rest:
                del self._ranges[ledger]
        return events

    def give_up(self) -> list[AckEvent]:
        """Return everything outstanding as unanswered; the matcher is idle then."""
        return self.expire(float("inf"))


def emit_ok(events: list[AckEvent], sink: AckSink, slot: Slot, first: EntryId, last: EntryId) -> None:
    """Append an OK, or extend the one before it, so that the sink is called less often."""
    if events:
        before = events[-1]
        if before[3] + 1 == first and before[0] is sink and before[1] == slot and before[4] is Code.OK:
            events[-1] = (sink, slot, before[2], last, Code.OK, -1)
            return
    events.append((sink, slot, first, last, Code.OK, -1))
