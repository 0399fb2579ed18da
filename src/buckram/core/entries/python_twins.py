"""Verifies consecutive entries of one size with CRC32C together, as for all bulk reads.

`verify_entries` is the reference of its compiled twin (`_hot.c`); `hot.py` chooses between them.

Not here: entries of other kinds, one at a time (`entry.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache
from struct import Struct, calcsize
from typing import Any

import google_crc32c

from buckram.core.entries.crc_columns import HEAD_BYTES, digests_match
from buckram.core.entries.strides import all_equal, count_up
from buckram.types import EntryId, LedgerId

OVERHEAD = HEAD_BYTES + 4
_BLOCK = 128
"""Number of entries that are verified together: enough to save calls, few enough to stay in the processor's cache."""
_COLUMNS_FROM = 256
"""Number of entries from which on checking headers column by column costs less than a call per entry."""
_crc32c: Callable[[int, bytes], int] = google_crc32c.extend
_crc32c_of: Callable[[bytes], int] = google_crc32c.value


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
            crcs.extend(map(_crc32c_of, block))
            if payloads is not None:
                payloads += block
        if digests_match(packet, at, stride, size, crcs, _may_differ(first, first + count - 1)):
            return count
        if payloads:  # some entry of the block is bad: find the first
            payloads.clear()
    for number, found in enumerate(fields(packet, at, stride, count, 0, f"{HEAD_BYTES}sI{size}s")):
        block = found[2::3]
        if tuple(map(_crc32c, map(_crc32c_of, found[::3]), block)) != found[1::3]:
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
