"""The hot forms of adds: runs of v2 ADD frames on both ends, and the matching of their answers.

Per entry there is one unpack and a few compares here, and nothing else; everything that needs a decision happens per
run. Other operations and the v3 wire are wire_v2, wire_v3; which of them a packet is, protocol.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeAlias

import google_crc32c

from buckram.core.entry import ENTRY_HEADER, Digest
from buckram.errors import BuckramError, Code
from buckram.types import BookieId, Buffer, DigestType, EntryId, LedgerId

RECOVERY_ADD = 0x0002
HIGH_PRIORITY = 0x0004
ADD_HEADER = 0x0201_0000
"""Version 2, opcode 1; the low 16 bits are flags."""
FRAME_OVERHEAD = 28
"""Bytes of an ADD frame before the stored entry: length, header, master key."""
ACK_BYTES = 28
MAX_RUN_BYTES = 64 * 1024
_MIN_PACKET = 24 + 24  # header, key, then ledger, entry and LAC of the stored entry
_ADD = struct.Struct(">II20sqqq")
_PREFIX = struct.Struct(">II20s")
_SEALED_CRC32C = struct.Struct(">II20s32sI")
_ACK = struct.Struct(">IIiqq")
_ACK_START = b"\0\0\0\x18\x02\x01\0\0"
_LOW_BYTES = bytes(range(256))


class AddContext(NamedTuple):
    """What the answers to a run need besides its ids. `txns`: one v3 transaction id per entry."""

    protocol: int
    version: int
    txns: tuple[int, ...]


V2_ADDS = AddContext(2, 2, ())


@dataclass(slots=True)
class AddRun:
    """Adds of consecutive ids of one ledger with the same key and flags: chunk[start:end] are whole v2 ADD frames.

    `lac` is the greatest LAC among them, `stride` the size of each frame, or 0 when they differ.
    """

    chunk: bytes = field(repr=False)
    start: int
    end: int
    ledger_id: LedgerId
    first: EntryId
    count: int
    master_key: bytes
    flags: int
    lac: EntryId
    stride: int
    context: AddContext = V2_ADDS
    deferred_sync: bool = False

    @property
    def last(self) -> EntryId:
        return self.first + self.count - 1

    def detached(self) -> AddRun:
        """The same run without the rest of its chunk: a run that waits then holds no more than it is charged for."""
        if self.end - self.start == len(self.chunk):
            return self
        return replace(self, chunk=self.chunk[self.start:self.end], start=0, end=self.end - self.start)

    @property
    def recovery(self) -> bool:
        return bool(self.flags & RECOVERY_ADD)

    @property
    def high_priority(self) -> bool:
        return bool(self.flags & HIGH_PRIORITY)


def scan_adds(
    chunk: bytes, offset: int, max_frame_bytes: int, max_run_bytes: int = MAX_RUN_BYTES
) -> tuple[int, list[AddRun]]:
    """Take version 2 ADD frames from `offset` on. -> (offset of what is left, runs).

    Stops before the first frame that is incomplete, not such an ADD, or malformed; the caller decides about it. A run
    ends at `max_run_bytes`, so that an entry inside it is found by walking few frames.
    """
    runs: list[AddRun] = []
    unpack = _ADD.unpack_from
    size = len(chunk)
    stop = size - _ADD.size
    max_packet = max_frame_bytes - 4
    start = run_ledger = run_header = next_entry = run_length = cap = -1
    first = stride = top = 0
    run_key = b""
    while offset <= stop:
        length, header, key, ledger, entry, lac = unpack(chunk, offset)
        end = offset + 4 + length
        if entry == next_entry and ledger == run_ledger and header == run_header and end <= cap and key == run_key:
            if length != run_length:
                if length < _MIN_PACKET or length > max_packet:
                    break
                stride = 0
            if lac > top:
                top = lac
        else:
            if (
                end > size or header >> 16 != 0x0201 or length < _MIN_PACKET or length > max_packet
                or entry < 0 or ledger < 0
            ):
                break
            if start >= 0:
                flags, count = run_header & 0xFFFF, next_entry - first
                runs.append(AddRun(chunk, start, offset, run_ledger, first, count, run_key, flags, top, stride))
            start, cap = offset, min(size, offset + max_run_bytes)
            run_ledger, run_header, run_key, run_length = ledger, header, key, length
            first, top, stride = entry, lac, length + 4
        next_entry = entry + 1
        offset = end
    if start >= 0:
        flags, count = run_header & 0xFFFF, next_entry - first
        runs.append(AddRun(chunk, start, offset, run_ledger, first, count, run_key, flags, top, stride))
    return offset, runs


def ack_frames(
    ledger_id: LedgerId, first: EntryId, count: int, code: Code = Code.OK, version: int = 2
) -> bytes:
    """The 28-byte v2 ADD answers for consecutive ids, one after another."""
    header = ADD_HEADER if version == 2 else (version << 24 | 0x10000 if version else 1)
    number = 0 if code is Code.OK else code.v2
    if count == 1:
        return _ACK.pack(24, header, number, ledger_id, first)
    blocks: list[bytes | bytearray] = []
    while count > 0:
        # Frames of up to 256 neighbours differ in their last byte only: repeat one and lay the low bytes over it.
        low = first & 0xFF
        n = min(count, 256 - low)
        block = bytearray(_ACK.pack(24, header, number, ledger_id, first) * n)
        block[ACK_BYTES - 1::ACK_BYTES] = _LOW_BYTES[low:low + n]
        blocks.append(block)
        first += n
        count -= n
    return b"".join(blocks)


def frame_adds(
    digest: Digest, master_key: bytes, ledger_id: LedgerId, first: EntryId, lac: EntryId, length_before: int,
    payloads: Sequence[Buffer], flags: int = 0,
) -> tuple[list[bytes], bytes, int]:
    """Seal and frame consecutive entries. -> (ADD frames, expected OK answers as one blob, ledger length after).

    `length_before`: payload bytes of the ledger before `first`. The caller has checked payload sizes.
    """
    header = ADD_HEADER | flags
    length, entry = length_before, first
    frames: list[bytes] = []
    add = frames.append
    pack_head = ENTRY_HEADER.pack
    if digest.kind is DigestType.CRC32C:
        crc, pack = google_crc32c.extend, _SEALED_CRC32C.pack
        for payload in payloads:
            body = payload if type(payload) is bytes else bytes(payload)
            size = len(body)
            length += size
            head = pack_head(ledger_id, entry, lac, length)
            add(pack(size + 60, header, master_key, head, crc(crc(0, head), body)) + body)
            entry += 1
    else:
        compute, prefix, fixed = digest.compute, _PREFIX.pack, 56 + digest.size
        for payload in payloads:
            size = payload.nbytes if type(payload) is memoryview else len(payload)
            length += size
            head = pack_head(ledger_id, entry, lac, length)
            add(b"".join((prefix(size + fixed, header, master_key), head, compute(head, payload), payload)))
            entry += 1
    return frames, ack_frames(ledger_id, first, entry - first), length


def frame_add(master_key: bytes, stored: bytes, flags: int = 0) -> bytes:
    """One stored entry as a v2 ADD frame."""
    return _PREFIX.pack(24 + len(stored), ADD_HEADER | flags, master_key) + stored


def walk_frames(chunk: bytes, start: int, end: int) -> Iterator[tuple[int, bytes, bytes]]:
    """(flags, master key, stored entry) of each v2 ADD frame in chunk[start:end]."""
    while start < end:
        length, header, key = _PREFIX.unpack_from(chunk, start)
        stop = start + 4 + length
        yield header & 0xFFFF, key, chunk[start + FRAME_OVERHEAD:stop]
        start = stop


class AckSink(Protocol):
    """Whoever sends adds of one ledger on a lane. Each entry of each run sent is reported exactly once, in ranges.

    Called on the loop, never from inside the call that sent the run.
    """

    def acked(self, position: int, bookie_id: BookieId, first: EntryId, last: EntryId) -> None: ...
    def add_failed(
        self, position: int, bookie_id: BookieId, first: EntryId, last: EntryId, error: BuckramError
    ) -> None: ...


SentRun: TypeAlias = tuple[AckSink, int, EntryId, EntryId]
"""(sink, position, first, last)"""
AckEvent: TypeAlias = tuple[AckSink, int, EntryId, EntryId, Code | None, LedgerId]
"""(sink, position, first, last, code, ledger). Code None: no answer in time. The ledger is -1 where the code is OK."""
_Batch: TypeAlias = tuple[bytes, Sequence[SentRun], float]  # expected answers, their runs, when they are overdue


class _Waiting:
    """A range of one run that waits for its answers, in whatever order they come."""

    __slots__ = ("expires", "first", "last", "position", "sink")

    def __init__(self, sink: AckSink, position: int, first: EntryId, last: EntryId, expires: float) -> None:
        self.sink, self.position, self.first, self.last, self.expires = sink, position, first, last, expires


class AckMatcher:
    """Matches the bytes that come with the answers that are expected.

    A bookie mostly answers everything in the order it was sent, with OK: then whole batches are compared as bytes.
    Otherwise the expectation is taken apart into ranges per ledger, which are found by (ledger, entry) in any order.
    """

    def __init__(self) -> None:
        self._queue: deque[_Batch] = deque()
        # How far the answers to the first batch have come: bytes of its blob, run, entry in that run.
        self._offset = self._index = 0
        self._next_entry: EntryId = -1
        self._ranges: dict[LedgerId, list[_Waiting]] = {}

    @property
    def idle(self) -> bool:
        """Nothing is waited for."""
        return not self._queue and not self._ranges

    def expect(self, acks: bytes, runs: Sequence[SentRun], expires: float) -> None:
        """`acks`: the OK answers to `runs`, in order; there is at least one run and each has at least one entry."""
        self._queue.append((acks, runs, expires))

    def take(self, buffer: bytes, offset: int, events: list[AckEvent]) -> int:
        """Consume whole ADD answers from `offset` on and append what they say to `events`.

        -> offset of the first frame that is no ADD answer, or not one that is waited for, or not complete.
        """
        queue = self._queue
        while len(buffer) - offset >= ACK_BYTES:
            if queue:
                acks, runs, _ = queue[0]
                if not self._offset and buffer.startswith(acks, offset):
                    queue.popleft()
                    offset += len(acks)
                    for sink, position, first, last in runs:
                        emit_ok(events, sink, position, first, last)
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
        """How many frames at offset equal the next expected ones."""
        begin = self._offset
        most = min(len(buffer) - offset, len(acks) - begin) // ACK_BYTES
        if buffer.startswith(acks[begin:begin + most * ACK_BYTES], offset):
            return most
        least = 0
        while most - least > 1:  # Equal up to `least`, different somewhere before `most`.
            middle = (least + most) // 2
            part = acks[begin + least * ACK_BYTES:begin + middle * ACK_BYTES]
            if buffer.startswith(part, offset + least * ACK_BYTES):
                least = middle
            else:
                most = middle
        return least

    def _advance(self, runs: Sequence[SentRun], frames: int, events: list[AckEvent]) -> None:
        """The next `frames` answers to the first batch came, all OK."""
        while frames:
            sink, position, first, last = runs[self._index]
            if self._next_entry >= 0:
                first = self._next_entry
            count = min(frames, last - first + 1)
            emit_ok(events, sink, position, first, first + count - 1)
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
        """Take one answer, and those after it that continue it. -> bytes taken, 0 for an unknown or other frame."""
        if not buffer.startswith(_ACK_START, offset):
            return 0
        _, header, number, ledger, entry = _ACK.unpack_from(buffer, offset)
        waiting = self._find(ledger, entry)
        if waiting is None and self._queue:
            while self._queue:
                self._take_first_apart()
            waiting = self._find(ledger, entry)
        if waiting is None:
            return 0
        last, limit = entry, waiting.last
        after = offset + ACK_BYTES
        while last < limit and buffer.startswith(_ACK.pack(24, header, number, ledger, last + 1), after):
            last += 1
            after += ACK_BYTES
        if number == 0:
            emit_ok(events, waiting.sink, waiting.position, entry, last)
        else:
            events.append((waiting.sink, waiting.position, entry, last, Code.from_v2(number), ledger))
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
            rest = _Waiting(waiting.sink, waiting.position, last + 1, waiting.last, waiting.expires)
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
        """Turn what the first batch still waits for into ranges."""
        acks, runs, expires = self._queue[0]
        offset = self._offset
        for i in range(self._index, len(runs)):
            sink, position, first, last = runs[i]
            if i == self._index and self._next_entry >= 0:
                first = self._next_entry
            ledger = int.from_bytes(acks[offset + 12:offset + 20], "big", signed=True)
            self._ranges.setdefault(ledger, []).append(_Waiting(sink, position, first, last, expires))
            offset += (last - first + 1) * ACK_BYTES
        self._drop_first()

    def expire(self, now: float) -> list[AckEvent]:
        """Give up what should have been answered by `now`; answers that come later are unknown frames."""
        while self._queue and self._queue[0][2] <= now:
            self._take_first_apart()
        events: list[AckEvent] = []
        for ledger in list(self._ranges):
            rest = []
            for waiting in self._ranges[ledger]:
                if waiting.expires <= now:
                    events.append((waiting.sink, waiting.position, waiting.first, waiting.last, None, ledger))
                else:
                    rest.append(waiting)
            self._ranges[ledger] = rest
            if not rest:
                del self._ranges[ledger]
        return events

    def give_up(self) -> list[AckEvent]:
        """Everything unanswered; the matcher is idle then."""
        return self.expire(float("inf"))


def emit_ok(events: list[AckEvent], sink: AckSink, position: int, first: EntryId, last: EntryId) -> None:
    """Append an OK, or extend the one before it: fewer calls for the sink."""
    if events:
        before = events[-1]
        if before[3] + 1 == first and before[0] is sink and before[1] == position and before[4] is Code.OK:
            events[-1] = (sink, position, before[2], last, Code.OK, -1)
            return
    events.append((sink, position, first, last, Code.OK, -1))
