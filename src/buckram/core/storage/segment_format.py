"""The bytes of a bookie's log segments: blocks, frames, footer pages, trailer (docs/reference/storage.md).

A block is one group commit: header, then frames one after another, padded to the device's unit. A frame is a v2 ADD
packet with its 4-byte length as it came from the wire, or a STATE frame of our own. A sealed segment ends with pages
(directory, runs, states, keys) and a trailer.
Not here: the meaning of the records (`bookie/storage`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import google_crc32c

from buckram.core.entries.strides import all_equal, count_up
from buckram.core.storage.ledger_state import (
    OLD_STATE_SIZE,
    STATE_FRAME_LENGTHS,
    STATE_SIZE,
    StoredLedgerState,
    unpack_state,
)
from buckram.types import NO_ENTRY, EntryId, LedgerId

FORMAT_VERSION = 1
TRAILER_VERSION = 2
"""Version 1 has states without births (96 bytes); it is read, not written."""
MAGIC, TRAILER_MAGIC = b"BkLg", b"BkSg"
SECTOR = 512
"""Blocks begin at multiples of it, whatever the device's own unit is."""

_BLOCK = struct.Struct(">4sBxHQIIIII")
BLOCK_HEADER = _BLOCK.size
_SUM = struct.Struct(">I")
_LENGTH = struct.Struct(">I")
_ADD = struct.Struct(">II20sqqq")
ADD_HEADER = _ADD.size
ENTRY_AT = 28
"""Offset of the stored entry in an ADD frame: after length, packet header and master key."""
_HIGHEST_ADD = 0x02FFFFFF
MAX_RUN_BYTES = 64 * 1024


class CorruptBytes(ValueError):
    """Stored bytes fail a check, or are not what their index says."""


extend_crc = google_crc32c.extend
"""`extend_crc(seed, data)` is what `crc` returns, without a function around it; `data` are bytes."""


def crc(data: bytes, seed: int = 0) -> int:
    return google_crc32c.extend(seed, data)  # type: ignore[no-any-return]  # the package is untyped


def padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


# -- blocks


@dataclass(frozen=True, slots=True)
class Block:
    """A block whose checksum, in its header, is right. `span` is its padded length on disk in bytes."""

    offset: int
    span: int
    payload: bytes
    checksum: int = 0


def pack_block_header(segment: int, salt: int, offset: int, payload: Sequence[bytes], unit: int) -> tuple[bytes, int]:
    """Return header and span of the block with this payload, in parts, at `offset` of the segment's file."""
    size = sum(map(len, payload))
    span = -(-(BLOCK_HEADER + size) // unit) * unit
    head = _BLOCK.pack(MAGIC, FORMAT_VERSION, 0, segment, offset, size, span, salt, 0)[:-4]
    checksum = extend_crc(0, head)
    for part in payload:
        checksum = extend_crc(checksum, part)
    return head + _SUM.pack(checksum), span


def block_span(data: bytes, at: int, segment: int, salt: int, offset: int) -> tuple[int, int] | None:
    """Return (payload bytes, span) if data[at:] is a header of this segment for this offset, without other checks."""
    if len(data) - at < BLOCK_HEADER:
        return None
    magic, version, _, seq, where, size, span, salted, _ = _BLOCK.unpack_from(data, at)
    if magic != MAGIC or seq != segment or where != offset or salted != salt or version != FORMAT_VERSION:
        return None
    if size + BLOCK_HEADER > span or span % SECTOR:
        return None
    return size, span


def open_block(data: bytes, at: int, segment: int, salt: int, offset: int) -> Block | None:
    """Return the block at `data[at:]`; None if it is not complete and valid."""
    sizes = block_span(data, at, segment, salt, offset)
    if sizes is None or at + BLOCK_HEADER + sizes[0] > len(data):
        return None
    payload = data[at + BLOCK_HEADER : at + BLOCK_HEADER + sizes[0]]
    head = data[at : at + BLOCK_HEADER - 4]
    checksum = crc(payload, crc(head))
    if checksum != _SUM.unpack_from(data, at + BLOCK_HEADER - 4)[0]:
        return None
    return Block(offset, sizes[1], payload, checksum)


# -- frames

Run = tuple[int, int, int, int, int, bool, int, bytes]
"""(ledger, first entry, count, file offset, length, all frames have one size, highest LAC, master key)"""


def parse_frames(payload: bytes, base: int) -> list[Run | StoredLedgerState]:
    """Return the runs and states of a block's payload in order; `base` is the file offset of payload[0].

    Raises CorruptBytes if the lengths do not add up although the block's checksum is right.
    """
    found: list[Run | StoredLedgerState] = []
    unpack, end, at = _ADD.unpack_from, len(payload), 0
    ledger, following, start, first, size, even, top, run_key = -1, -1, 0, 0, 0, True, NO_ENTRY, b""
    while at < end:
        if end - at < ADD_HEADER:
            raise CorruptBytes(f"{end - at} bytes left at {base + at}, a frame needs {ADD_HEADER}")
        length, header, key, owner, entry, lac = unpack(payload, at)
        after = at + 4 + length
        if after > end or length < ADD_HEADER - 4:
            raise CorruptBytes(f"frame of {length} bytes at {base + at} does not fit its block")
        if header <= _HIGHEST_ADD:
            if owner == ledger and entry == following and after - start <= MAX_RUN_BYTES:
                following += 1
                even = even and length == size
                top = max(top, lac)
            else:
                if ledger >= 0:
                    found.append((ledger, first, following - first, base + start, at - start, even, top, run_key))
                ledger, first, following, start, top, run_key = owner, entry, entry + 1, at, lac, key
                size, even = length, True
        else:
            if ledger >= 0:
                found.append((ledger, first, following - first, base + start, at - start, even, top, run_key))
                ledger = -1
            if STATE_FRAME_LENGTHS.get(header) == length:
                found.append(unpack_state(payload, at + 8, length - 4))
            else:
                raise CorruptBytes(f"unknown frame {header:#x} at {base + at}")
        at = after
    if ledger >= 0:
        found.append((ledger, first, following - first, base + start, at - start, even, top, run_key))
    return found


_IDS = struct.Struct(">I24xqq")
_IDS_AT = 4 + 24
_IDS_END = _IDS_AT + 16
_FRAMES_AT_ONCE = 64
"""Number of frames of equal size that are decoded together."""


@lru_cache(maxsize=64)
def _block_of(stride: int, count: int) -> struct.Struct:
    """Return a struct for the stored entries of `count` frames of `stride` bytes."""
    return struct.Struct(">" + f"{ENTRY_AT}x{stride - ENTRY_AT}s" * count)


def _skip_frames(data: bytes, at: int, count: int) -> int:
    """Return where the frame begins that is `count` frames after `at`. Raises struct.error beyond `data`."""
    length = data[at : at + 4]
    stride = 4 + int(_LENGTH.unpack(length)[0])
    end = at + count * stride
    if end <= len(data) and all_equal(data, at, stride, count, length):  # usually all have one size
        return end
    for _ in range(count):
        at += 4 + _LENGTH.unpack_from(data, at)[0]
    return at


def _equal_stride(data: bytes, at: int, end: int, ledger: LedgerId, entry: EntryId, count: int) -> int:
    """Return the size of the frames if all have the same and the right ids; else 0."""
    stride = 4 + int(_LENGTH.unpack_from(data, at)[0])
    if (
        stride < _IDS_END
        or at + count * stride > end
        or not all_equal(data, at, stride, count, data[at : at + 4])
        or not all_equal(data, at + _IDS_AT, stride, count, ledger.to_bytes(8, "big", signed=True))
        or not count_up(data, at + _IDS_AT + 8, stride, count, entry)
    ):
        return 0
    return stride


def _cut_equal(data: bytes, at: int, end: int, ledger: LedgerId, entry: EntryId, count: int) -> list[bytes]:
    """Return what `walk_run` does if all frames have one size and the right ids; else nothing."""
    stride = _equal_stride(data, at, end, ledger, entry, count)
    if not stride:
        return []
    found: list[bytes] = []
    for done in range(0, count, _FRAMES_AT_ONCE):
        found += _block_of(stride, min(_FRAMES_AT_ONCE, count - done)).unpack_from(data, at + done * stride)
    return found


def walk_run(data: bytes, at: int, end: int, skip: int, ledger: LedgerId, entry: EntryId, count: int) -> list[bytes]:
    """Return `count` stored entries from `entry` on, out of a run's bytes data[at:end], after `skip` frames.

    Raises CorruptBytes if lengths exceed the run or a frame has other ids than the index says.
    """
    unpack = _IDS.unpack_from
    try:
        if skip:
            at = _skip_frames(data, at, skip)
        if count > 1 and (found := _cut_equal(data, at, end, ledger, entry, count)):
            return found
        found = []
        for wanted in range(entry, entry + count):
            length, owner, got = unpack(data, at)
            after = at + 4 + length
            if owner != ledger or got != wanted or after > end:
                raise CorruptBytes(f"ledger {ledger} entry {wanted}: the log holds ledger {owner} entry {got} there")
            found.append(data[at + ENTRY_AT : after])
            at = after
    except struct.error:
        raise CorruptBytes(f"ledger {ledger} entry {entry}: its run of frames is broken") from None
    return found


def run_extent(
    data: bytes, at: int, end: int, skip: int, ledger: LedgerId, entry: EntryId, count: int
) -> tuple[int, int]:
    """Return where the frames of `count` entries from `entry` on begin and end in a run data[at:end].

    Raises CorruptBytes like `walk_run`.
    """
    unpack = _IDS.unpack_from
    try:
        if skip:
            at = _skip_frames(data, at, skip)
        start = at
        if count > 1 and (stride := _equal_stride(data, at, end, ledger, entry, count)):
            return start, start + count * stride
        for wanted in range(entry, entry + count):
            length, owner, got = unpack(data, at)
            if owner != ledger or got != wanted:
                raise CorruptBytes(f"ledger {ledger} entry {wanted}: the log holds ledger {owner} entry {got} there")
            at += 4 + length
    except struct.error:
        raise CorruptBytes(f"ledger {ledger} entry {entry}: its run of frames is broken") from None
    if at > end:
        raise CorruptBytes(f"ledger {ledger} entry {entry}: its run of frames is cut short")
    return start, at


# -- footer

PAGE = 4096
_PAGE_HEAD = struct.Struct(">II")
PAGE_DATA = PAGE - _PAGE_HEAD.size
RUN_RECORD = struct.Struct(">qIIII")
"""first entry, count, frames to skip or EVEN, file offset, length. Ascending by first entry and disjoint."""
EVEN = 2**32 - 1
"""Value in the place of the frames to skip: there are none, and all frames have one size, so that each can be read
alone.
"""
DIR_RECORD = struct.Struct(">qqqIIQI")
"""ledger, first and last entry, index of its first run record, number of them, bytes of frames, epoch."""
KEY_RECORD = struct.Struct(">q")
_TRAILER = struct.Struct(">4sB3xQIIIIIIqqQI")
TRAILER_SIZE = PAGE


def _page_seed(owner: int, number: int) -> int:
    return crc(struct.pack(">QI", owner, number))


def pack_page(owner: int, number: int, data: bytes | bytearray) -> bytes:
    """Return a page of `owner` (segment or table number); its checksum covers owner and number, too."""
    body = _PAGE_HEAD.pack(0, len(data))[4:] + data
    return (_SUM.pack(crc(body, _page_seed(owner, number))) + body).ljust(PAGE, b"\0")


def open_page(page: bytes, owner: int, number: int) -> bytes:
    """Return the data of a page. Raises CorruptBytes if it is damaged or belongs elsewhere."""
    if len(page) == PAGE:
        check, size = _PAGE_HEAD.unpack_from(page)
        if size <= PAGE_DATA and crc(page[4 : 8 + size], _page_seed(owner, number)) == check:
            return page[8 : 8 + size]
    raise CorruptBytes(f"page {number} of {owner} fails its check")


def pack_pages(owner: int, first: int, records: bytes | bytearray, record_size: int) -> Iterator[bytes]:
    """Return pages with whole records, numbered from `first` on."""
    step = PAGE_DATA // record_size * record_size
    for index, start in enumerate(range(0, len(records), step)):
        yield pack_page(owner, first + index, records[start : start + step])


def pages_of(count: int, record_size: int) -> int:
    return -(-count // (PAGE_DATA // record_size))


@dataclass(frozen=True, slots=True)
class Trailer:
    """The content of the last page of a sealed segment. Page numbers count from `footer_at`, in order: directory, runs,
    states, keys (first ledger of each directory page, then of each state page).
    """

    segment: int
    log_end: int
    footer_at: int
    directory: int
    runs: int
    states: int
    salt: int
    lowest: int
    highest: int
    data_bytes: int
    version: int = TRAILER_VERSION

    def pack(self) -> bytes:
        body = _TRAILER.pack(
            TRAILER_MAGIC,
            self.version,
            self.segment,
            self.log_end,
            self.footer_at,
            self.directory,
            self.runs,
            self.states,
            self.salt,
            self.lowest,
            self.highest,
            self.data_bytes,
            0,
        )[:-4]
        return (body + _SUM.pack(crc(body))).rjust(TRAILER_SIZE, b"\0")

    @property
    def state_size(self) -> int:
        return OLD_STATE_SIZE if self.version == 1 else STATE_SIZE

    @property
    def first_run_page(self) -> int:
        return pages_of(self.directory, DIR_RECORD.size)

    @property
    def first_state_page(self) -> int:
        return self.first_run_page + pages_of(self.runs, RUN_RECORD.size)

    @property
    def first_key_page(self) -> int:
        return self.first_state_page + pages_of(self.states, self.state_size)

    @property
    def keys(self) -> int:
        return pages_of(self.directory, DIR_RECORD.size) + pages_of(self.states, self.state_size)

    @property
    def pages(self) -> int:
        return self.first_key_page + pages_of(self.keys, KEY_RECORD.size)


def open_trailer(data: bytes, segment: int, salt: int) -> Trailer | None:
    """Return the trailer in the last page of a segment's file; None if that is not valid for this use of the file."""
    if len(data) != TRAILER_SIZE:
        return None
    at = TRAILER_SIZE - _TRAILER.size
    fields = _TRAILER.unpack_from(data, at)
    if fields[0] != TRAILER_MAGIC or fields[1] not in (1, TRAILER_VERSION) or crc(data[at:-4]) != fields[-1]:
        return None
    trailer = replace(Trailer(*fields[2:-1]), version=fields[1])
    return trailer if trailer.segment == segment and trailer.salt == salt else None
