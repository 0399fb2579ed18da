"""The hot forms of adds: runs of v2 ADD frames on both ends, and their answers. Matching answers is core/acks.

Per entry there is one unpack and a few compares here, and nothing else; everything that needs a decision happens per
run. Other operations and the v3 wire are wire_v2, wire_v3; which of them a packet is, protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import google_crc32c

from buckram.core.entry import ENTRY_HEADER, Digest
from buckram.errors import Code
from buckram.types import Buffer, DigestType, EntryId, LedgerId

RECOVERY_ADD = 0x0002
HIGH_PRIORITY = 0x0004
ADD_HEADER = 0x0201_0000
"""Version 2, opcode 1; the low 16 bits are flags."""
FRAME_OVERHEAD = 28
"""Bytes of an ADD frame before the stored entry: length, header, master key."""
ACK_BYTES = 28
MAX_RUN_BYTES = 64 * 1024
_FEW = 4
_MIN_PACKET = 24 + 24  # header, key, then ledger, entry and LAC of the stored entry
_ADD = struct.Struct(">II20sqqq")
_PREFIX = struct.Struct(">II20s")
_SEALED_CRC32C = struct.Struct(">II20s32sI")
ACK = struct.Struct(">IIiqq")
"""length 24, header, code, ledger, entry"""
_LOW_BYTES = bytes(range(256))


class AddContext(NamedTuple):
    """What the answers to a run need besides its ids. `txns`: per entry its v3 transaction id, a varint as it came."""

    protocol: int
    version: int
    txns: tuple[bytes, ...]


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

    def proof(self, above: EntryId) -> bytes | None:
        """An entry as it is stored whose header proves a LAC over `above`: the first such of a few, so that a tail
        that keeps up gets them in a row, else the last (None if that has an older LAC: it was sent again)."""
        at, step = self.start, self.stride
        if self.count > _FEW and step:
            at = self.end - step
        while True:
            stop = at + (step or 4 + int.from_bytes(self.chunk[at : at + 4], "big"))
            if stop >= self.end or (self.count <= _FEW and _ADD.unpack_from(self.chunk, at)[5] > above):
                break
            at = stop
        return self.chunk[at + FRAME_OVERHEAD : stop] if _ADD.unpack_from(self.chunk, at)[5] > above else None

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
        return ACK.pack(24, header, number, ledger_id, first)
    blocks: list[bytes | bytearray] = []
    while count > 0:
        # Frames of up to 256 neighbours differ in their last byte only: repeat one and lay the low bytes over it.
        low = first & 0xFF
        n = min(count, 256 - low)
        block = bytearray(ACK.pack(24, header, number, ledger_id, first) * n)
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
