"""The hot path of adds: runs of v2 ADD frames on both ends, and the replies to them.

Entries are scanned and sealed one by one; every decision is made once per run.

Not here: matching replies (`core/wire/acks.py`), other operations (`core/wire/v2.py`, `core/wire/v3.py`), telling v2
packets from v3 packets (`core/wire/server_protocol.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from buckram.core.entries.entry import ENTRY_HEADER, MIN_STORED_BYTES, Digest
from buckram.core.entries.hot import scan_add_frames, seal_adds
from buckram.core.entries.packed import PackedBodies
from buckram.core.entries.python_twins import ADD
from buckram.errors import Code
from buckram.types import Buffer, DigestType, EntryId, LedgerId

RECOVERY_ADD = 0x0002
HIGH_PRIORITY = 0x0004
ADD_HEADER = 0x0201_0000
"""Version 2, opcode 1; the low 16 bits are flags."""
FRAME_OVERHEAD = 28
"""Bytes of an ADD frame before the stored entry: length, header, master key."""
SMALLEST_ADD = FRAME_OVERHEAD + MIN_STORED_BYTES
ACK_BYTES = 28
MAX_RUN_BYTES = 64 * 1024
ALL_RUNS = 2**31 - 1
_FEW = 4
_PREFIX = struct.Struct(">II20s")
ACK = struct.Struct(">IIiqq")
"""length 24, header, code, ledger, entry"""
_LOW_BYTES = bytes(range(256))


class AddContext(NamedTuple):
    """Context for the replies to a run, besides its ids. `txns`: the v3 transaction id of each entry as a raw
    varint.
    """

    protocol: int
    version: int
    txns: tuple[bytes, ...]


V2_ADDS = AddContext(2, 2, ())


class OnAnswered(Protocol):
    """Receiver of the answer to a run that did not come as adds, but is stored as if it had."""

    def __call__(self, run: AddRun, code: Code, /) -> None: ...


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
    answered: OnAnswered | None = field(default=None, repr=False)
    """Receiver of the answer; None for the client, which gets replies to adds."""

    @property
    def last(self) -> EntryId:
        return self.first + self.count - 1

    def proof(self, above: EntryId) -> bytes | None:
        """Return a stored entry whose header has a LAC above `above`, or None.

        In a run of at most _FEW entries it is the first such entry, so that a tailing reader that keeps up gets them in
        order. In longer runs only the last entry is examined; its LAC is older if the entry was sent again.
        """
        at, step = self.start, self.stride
        if self.count > _FEW and step:
            at = self.end - step
        while True:
            stop = at + (step or 4 + int.from_bytes(self.chunk[at : at + 4], "big"))
            if stop >= self.end or (self.count <= _FEW and ADD.unpack_from(self.chunk, at)[5] > above):
                break
            at = stop
        return self.chunk[at + FRAME_OVERHEAD : stop] if ADD.unpack_from(self.chunk, at)[5] > above else None

    def detached(self) -> AddRun:
        """Return the run without the rest of its chunk, so that a waiting run holds only what it is charged for."""
        if self.end - self.start == len(self.chunk):
            return self
        return replace(self, chunk=self.chunk[self.start : self.end], start=0, end=self.end - self.start)

    def split(self, count: int) -> tuple[AddRun, AddRun]:
        """Return the first `count` entries and the others, as two runs; `count` is at least 1 and less than all.

        Both keep the run's LAC: it holds for all entries, whichever part is stored first.
        """
        at = self.start
        if self.stride:
            at += count * self.stride
        else:
            for _ in range(count):
                at += 4 + int.from_bytes(self.chunk[at : at + 4], "big")
        txns = self.context.txns
        contexts = self.context, self.context
        if txns:
            contexts = self.context._replace(txns=txns[:count]), self.context._replace(txns=txns[count:])
        head = replace(self, end=at, count=count, context=contexts[0])
        tail = replace(self, start=at, first=self.first + count, count=self.count - count, context=contexts[1])
        return head, tail

    @property
    def recovery(self) -> bool:
        return bool(self.flags & RECOVERY_ADD)

    @property
    def high_priority(self) -> bool:
        return bool(self.flags & HIGH_PRIORITY)


def scan_adds(
    chunk: bytes, offset: int, max_frame_bytes: int, max_run_bytes: int = MAX_RUN_BYTES, most_runs: int = ALL_RUNS
) -> tuple[int, list[AddRun]]:
    """Take version 2 ADD frames from `offset` on. Returns the offset of the unconsumed rest, and the runs, at most
    `most_runs`.

    Stops before the first frame that is incomplete, not such an ADD, or malformed; the caller decides about it. A run
    ends at `max_run_bytes`, so that an entry inside it is found by walking few frames.
    """
    offset, rows = scan_add_frames(chunk, offset, max_frame_bytes - 4, max_run_bytes, most_runs)
    runs: list[AddRun] = []
    for start, end, ledger, first, count, flags, lac, stride in rows:
        key = bytes(chunk[start + 8 : start + FRAME_OVERHEAD])
        runs.append(AddRun(chunk, start, end, ledger, first, count, key, flags, lac, stride))
    return offset, runs


def take_runs(frames: Buffer, max_frame_bytes: int) -> list[AddRun]:
    """Return copies of the runs in `frames`, up to the first frame that is no ADD or larger than `max_frame_bytes`."""
    _, rows = scan_add_frames(frames, 0, max_frame_bytes - 4, MAX_RUN_BYTES, ALL_RUNS)
    runs: list[AddRun] = []
    for start, end, ledger, first, count, flags, lac, stride in rows:
        chunk = bytes(frames[start:end])
        key = chunk[8:FRAME_OVERHEAD]
        runs.append(AddRun(chunk, 0, end - start, ledger, first, count, key, flags, lac, stride))
    return runs


def ack_frames(ledger_id: LedgerId, first: EntryId, count: int, code: Code = Code.OK, version: int = 2) -> bytes:
    """Return the 28-byte v2 ADD replies for consecutive ids, joined."""
    header = ADD_HEADER if version == 2 else (version << 24 | 0x10000 if version else 1)
    number = 0 if code is Code.OK else code.v2
    if count == 1:
        return ACK.pack(24, header, number, ledger_id, first)
    blocks: list[bytes | bytearray] = []
    while count > 0:
        # Frames of up to 256 neighbours differ only in the last byte: repeat one and overwrite the last bytes.
        low = first & 0xFF
        n = min(count, 256 - low)
        block = bytearray(ACK.pack(24, header, number, ledger_id, first) * n)
        block[ACK_BYTES - 1 :: ACK_BYTES] = _LOW_BYTES[low : low + n]
        blocks.append(block)
        first += n
        count -= n
    return b"".join(blocks)


def refused_acks(acks: Buffer, code: Code) -> bytearray:
    """Return v2 ADD replies of code OK with another code instead."""
    refused = bytearray(acks)
    for place, digit in enumerate(struct.pack(">i", code.v2), 8):
        refused[place::ACK_BYTES] = bytes((digit,)) * (len(refused) // ACK_BYTES)
    return refused


def frame_adds(
    digest: Digest,
    master_key: bytes,
    ledger_id: LedgerId,
    first: EntryId,
    lac: EntryId,
    length_before: int,
    payloads: list[bytes],
    flags: int = 0,
) -> tuple[bytes, bytes, int]:
    """Seal and frame consecutive entries. Returns the ADD frames, the expected OK replies, and the ledger length after.

    `length_before`: payload bytes of the ledger before `first`. The caller has checked payload sizes.
    """
    header = ADD_HEADER | flags
    if digest.kind is DigestType.CRC32C:
        data, length = seal_adds(header, master_key, ledger_id, first, lac, length_before, payloads)
    else:
        length = length_before
        frames: list[bytes] = []
        compute, fixed = digest.compute, 56 + digest.size
        for entry, payload in enumerate(payloads, first):
            length += len(payload)
            head = ENTRY_HEADER.pack(ledger_id, entry, lac, length)
            frames += (_PREFIX.pack(len(payload) + fixed, header, master_key), head, compute(head, payload), payload)
        data = b"".join(frames)
    return data, ack_frames(ledger_id, first, len(payloads)), length


def cut_frames(data: bytes) -> list[bytes]:
    """Return the frames that `frame_adds` joined."""
    return [data[start:stop] for start, stop in _bounds(data, 0, len(data))]


def frame_add(master_key: bytes, stored: bytes, flags: int = 0) -> bytes:
    """Return one stored entry as a v2 ADD frame."""
    return _PREFIX.pack(24 + len(stored), ADD_HEADER | flags, master_key) + stored


def frame_copies(master_key: bytes, bodies: Sequence[bytes]) -> bytes:
    """Return stored entries as v2 ADD frames of recovery adds, which fenced ledgers accept.

    Packed entries are copied once, from their packet into the frames.
    """
    pieces: Sequence[Buffer] = bodies
    if isinstance(bodies, PackedBodies):
        packet = memoryview(bodies.packet)
        pieces = [packet[start:end] for start, end in zip(bodies.starts, bodies.ends, strict=True)]
        if bodies.stride:  # all of one size
            parts: list[Buffer] = [_copy_prefix(len(pieces[0]), master_key)] * (2 * len(pieces))
            parts[1::2] = pieces
            return b"".join(parts)
    parts, prefix, size = [], b"", -1
    for piece in pieces:
        if len(piece) != size:
            size = len(piece)
            prefix = _copy_prefix(size, master_key)
        parts += (prefix, piece)
    return b"".join(parts)


def _copy_prefix(size: int, master_key: bytes) -> bytes:
    return _PREFIX.pack(24 + size, ADD_HEADER | RECOVERY_ADD | HIGH_PRIORITY, master_key)


def walk_frames(chunk: bytes, start: int, end: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Return (flags, master key, stored entry) of each v2 ADD frame in chunk[start:end]."""
    for begin, stop in _bounds(chunk, start, end):
        _, header, key = _PREFIX.unpack_from(chunk, begin)
        yield header & 0xFFFF, key, chunk[begin + FRAME_OVERHEAD : stop]


def _bounds(chunk: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Return where each of the whole frames in chunk[start:end] begins and ends."""
    while start < end:
        stop = start + 4 + int.from_bytes(chunk[start : start + 4], "big")
        yield start, stop
        start = stop
