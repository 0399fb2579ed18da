"""Python twins of the compiled functions in `_hot.c`: bulk verifying, finding and sealing of entries.

`verify_entries` verifies consecutive entries of one size with CRC32C together, as for all bulk reads; `scan_add_frames`
finds runs of v2 ADD frames in received bytes, with one unpack and a few comparisons per entry; `seal_adds` seals
consecutive entries with CRC32C and frames them as v2 ADDs, as nearly all appends are. Each is the reference of its
compiled twin; `hot.py` chooses between them.

The digests of many entries of equal size are checked at once, so that headers cost neither a call nor an object each.
Why it works: for messages of one size a CRC is linear but for a constant, crc(x ^ y) = crc(x) ^ crc(y) ^ crc(0). So an
entry's digest is a constant, XOR its payload's own CRC, XOR what each byte of its header adds: a function of that byte,
its place and the payload's size. The bytes at one place of all headers are a column. Most columns hold one value
throughout, which goes into the constant; any other goes through a table. Numbers lie in four planes (the first bytes
of all, then the second, ...): a look-up is four `bytes.translate` then, an XOR is one of large integers. Nothing is
summed up over entries: every digest is compared in all of its 32 bits.

Not here: entries of other kinds and other digests, one at a time (`core/entries/entry.py`), what a run of adds is, and
the expected replies (`core/wire/adds.py`).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from struct import Struct, calcsize
from typing import Any

import google_crc32c

from buckram.core.entries.strides import all_equal, count_up
from buckram.types import Buffer, EntryId, LedgerId

# -- digests in columns ---------------------------------------------------------------------------------------

HEAD_BYTES = 32

_crc_of: Callable[[bytes], int] = google_crc32c.value


def digests_match(
    data: bytes | bytearray, at: int, stride: int, size: int, payload_crcs: array[int], columns: Iterable[int]
) -> bool:
    """Return whether each of len(payload_crcs) entries, at least one, has the right digest.

    The first entry's header is at `at`, and each next one `stride` bytes after the one before; the digest (big-endian
    u32) follows the header. `payload_crcs` (of "I") are the CRC-32Cs of the payloads of `size` bytes each. Only the
    given columns (places in the header) may differ between entries: all others are read from the first entry only.
    """
    count = len(payload_crcs)
    span = (count - 1) * stride + 1
    common = bytearray(data[at : at + HEAD_BYTES])
    numbers = memoryview(payload_crcs).tobytes()
    order = (3, 2, 1, 0) if sys.byteorder == "little" else (0, 1, 2, 3)
    total = _number([numbers[i::4] for i in order])
    digest = at + HEAD_BYTES
    total ^= _number([data[i : i + span : stride] for i in range(digest, digest + 4)])
    for place in columns:
        column = data[at + place : at + place + span : stride]
        if column != column[:1] * count:
            common[place] = 0
            total ^= _number(map(column.translate, _planes(HEAD_BYTES - 1 - place + size)))
    zeros = bytes(size)
    constant = _crc_of(bytes(common) + zeros) ^ _crc_of(zeros)
    return total == _number([bytes((byte,)) * count for byte in constant.to_bytes(4, "big")])


def _number(planes: Iterable[bytes | bytearray]) -> int:
    return int.from_bytes(b"".join(planes), "little")


@lru_cache(maxsize=256)  # of 1.3 KB each; a size of payloads in use takes five to eight of them
def _planes(behind: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Return what a byte with `behind` bytes after it adds: four tables of 256, one for each byte of the CRC."""
    zeros = bytes(behind)
    nothing = _crc_of(b"\0" + zeros)
    table = [0]
    for bit in range(8):
        adds = _crc_of(bytes((1 << bit,)) + zeros) ^ nothing
        table += [adds ^ number for number in table]
    packed = b"".join([number.to_bytes(4, "big") for number in table])
    return packed[0::4], packed[1::4], packed[2::4], packed[3::4]


# -- verifying entries ----------------------------------------------------------------------------------------

OVERHEAD = HEAD_BYTES + 4

_BLOCK = 128
"""Number of entries that are verified together: enough to save calls, few enough to stay in the processor's cache."""

_COLUMNS_FROM = 256
"""Number of entries from which on checking headers column by column costs less than a call per entry."""


def verify_entries(
    packet: bytes | bytearray,
    at: int,
    stride: int,
    count: int,
    size: int,
    ledger_id: LedgerId,
    first: EntryId,
    payloads: list[bytes] | None,
) -> int:
    """Return how many stored entries are good, from the first on; their payloads are appended to the (empty) list.

    They begin at packet[at], one `stride` (at least size + 36) after the other, with `size` bytes of payload each. Good
    entries are of that ledger, have consecutive ids from `first` on (first + count <= 2**63), and the right digest. May
    return fewer than the true count (it stops at the first bad block), never more. Raises ValueError if the entries do
    not fit into the packet.
    """
    end = at + (count - 1) * stride + OVERHEAD + size
    if at < 0 or count < 1 or size < 0 or stride < size + OVERHEAD or end > len(packet):
        raise ValueError(
            f"{count} entries of {size} bytes, {stride} apart, from {at} on: not within {len(packet)} bytes"
        )
    ledger = ledger_id.to_bytes(8, "big", signed=True)
    if not all_equal(packet, at, stride, count, ledger) or not count_up(packet, at + 8, stride, count, first):
        return 0
    if count >= _COLUMNS_FROM:
        crcs = array("I")
        for block in fields(packet, at, stride, count, OVERHEAD, f"{size}s"):
            crcs.extend(map(_crc_of, block))
            if payloads is not None:
                payloads += block
        if digests_match(packet, at, stride, size, crcs, _may_differ(first, first + count - 1)):
            return count
        if payloads:  # some entry of the block is bad: find the first
            payloads.clear()
    for number, found in enumerate(fields(packet, at, stride, count, 0, f"{HEAD_BYTES}sI{size}s")):
        block = found[2::3]
        if tuple(map(_crc32c, map(_crc_of, found[::3]), block)) != found[1::3]:
            return number * _BLOCK
        if payloads is not None:
            payloads += block
    return count


def fields(
    packet: bytes | bytearray, at: int, stride: int, count: int, skip: int, kind: str
) -> Iterator[tuple[Any, ...]]:
    """Return the fields `kind` (a format of struct) at `skip` bytes into each entry, as one tuple for each block."""
    size = calcsize(">" + kind)
    for done in range(0, count, _BLOCK):
        block = min(_BLOCK, count - done)
        yield _block(kind, stride - size, block).unpack_from(packet, at + done * stride + skip)


@lru_cache(maxsize=32)
def _block(kind: str, gap: int, count: int) -> Struct:
    return Struct(">" + f"{gap}x".join([kind] * count))


def _may_differ(first: EntryId, last: EntryId) -> range:
    """Return the places in the header that may differ in entries of one ledger from `first` to `last`."""
    return range(14 if first >> 16 == last >> 16 else 8, HEAD_BYTES)


# -- finding runs of adds -------------------------------------------------------------------------------------

ADD = struct.Struct(">II20sqqq")
"""Length, packet header, key; ledger, entry and LAC of the stored entry."""

_MIN_PACKET = 24 + 24
"""Header, key, then ledger, entry and LAC of the stored entry."""

Row = tuple[int, int, LedgerId, EntryId, int, int, EntryId, int]
"""Start and end, ledger, first id, entries, flags, greatest LAC, stride or 0, as in adds.AddRun."""


def scan_add_frames(
    chunk: Buffer, offset: int, max_packet: int, max_run_bytes: int, most_runs: int
) -> tuple[int, list[Row]]:
    """Return the offset of the unconsumed rest, and the runs, at most `most_runs`.

    Stops before the first frame that is incomplete, not such an ADD, or malformed.
    """
    rows: list[Row] = []
    unpack = ADD.unpack_from
    size = len(chunk)
    stop = size - ADD.size
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
                end > size
                or header >> 16 != 0x0201
                or length < _MIN_PACKET
                or length > max_packet
                or entry < 0
                or ledger < 0
            ):
                break
            if start >= 0:
                rows.append((start, offset, run_ledger, first, next_entry - first, run_header & 0xFFFF, top, stride))
                if len(rows) >= most_runs:
                    return offset, rows
            start, cap = offset, min(size, offset + max_run_bytes)
            run_ledger, run_header, run_key, run_length = ledger, header, key, length
            first, top, stride = entry, lac, length + 4
        next_entry = entry + 1
        offset = end
    if start >= 0:
        rows.append((start, offset, run_ledger, first, next_entry - first, run_header & 0xFFFF, top, stride))
    return offset, rows


# -- sealing adds ---------------------------------------------------------------------------------------------

_HEAD = struct.Struct(">qqqq")

_FRAME = struct.Struct(">II20s32sI")

_crc32c: Callable[[int, bytes], int] = google_crc32c.extend


def seal_adds(
    header: int,
    master_key: bytes,
    ledger_id: LedgerId,
    first: EntryId,
    lac: EntryId,
    length_before: int,
    payloads: list[bytes],
) -> tuple[bytes, int]:
    """Return the joined frames, and the ledger length after them. `header`: the packet header, flags included.

    Raises OverflowError if an id, length or size does not fit its field.
    """
    length, entry = length_before, first
    parts: list[bytes] = []
    try:
        if length < 0:
            raise struct.error
        for payload in payloads:
            size = len(payload)
            length += size
            head = _HEAD.pack(ledger_id, entry, lac, length)
            parts.append(_FRAME.pack(size + 60, header, master_key, head, _crc32c(_crc32c(0, head), payload)))
            parts.append(payload)
            entry += 1
    except struct.error:
        raise OverflowError(f"ledger {ledger_id}, entry {entry}, LAC {lac}, length {length}: out of range") from None
    return b"".join(parts), length
