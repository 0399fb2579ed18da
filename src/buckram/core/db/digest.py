"""Pages of a database as bytes: the empty database, the digest of all pages, differences between two states of a page.

The digest is the sum of one hash for each page, so that a change of a few pages costs the hashes of these.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from hashlib import blake2b

from buckram.core.db.wal_format import PAGE_BYTES

ZERO_PAGE = bytes(PAGE_BYTES)
LOCK_PAGE = 0x40000000 // PAGE_BYTES + 1
"""SQLite never writes this page: its bytes are where the database file is locked."""
_MASK = 2**64 - 1
_RUN = re.compile(rb"[^\0]+(?:\0{1,7}[^\0]+)*")
"""Pattern of bytes that differ, with short gaps: a gap costs less than another range."""
_FEW_ZEROS = 512
"""Unchanged bytes below which a page is written as a whole: searching it would cost more than they do."""
Ranges = list[tuple[int, bytes]]
"""Bytes to be written into a page, each with its offset."""


def _empty_page() -> bytes:
    """Return the only page of a database without tables, which uses a write-ahead log."""
    header = struct.pack(
        ">16sHBBBBBBIIIIIIIIIIII20xII",
        b"SQLite format 3\0",
        PAGE_BYTES,
        *(2, 2, 0, 64, 32, 32),
        *(1, 1, 0, 0, 0, 4, 0, 0, 1, 0, 0, 0),
        *(1, 3050000),
    )
    leaf = struct.pack(">BHHHB", 13, 0, 0, PAGE_BYTES, 0)
    return (header + leaf).ljust(PAGE_BYTES, b"\0")


EMPTY_PAGE = _empty_page()


def page_hash(number: int, page: bytes) -> int:
    """Return the summand of a page in the digest; 0 for the lock page."""
    if number == LOCK_PAGE:
        return 0
    return int.from_bytes(blake2b(page, digest_size=8, salt=number.to_bytes(16, "big")).digest(), "big")


def replaced(digest: int, old: int, new: int) -> int:
    """Return the digest after a page's hash went from `old` to `new`; the hash is 0 for a page that does not exist."""
    return (digest - old + new) & _MASK


def digest_of(pages: Iterable[bytes], first: int = 1, digest: int = 0) -> int:
    """Return a digest plus those of these pages, which come in their order from number `first` on."""
    for number, page in enumerate(pages, first):
        digest += page_hash(number, page)
    return digest & _MASK


EMPTY_DIGEST = page_hash(1, EMPTY_PAGE)


def differences(old: bytes, new: bytes) -> Ranges:
    """Return the ranges that turn `old` into `new`, ascending; applying them twice does no harm."""
    if old is ZERO_PAGE:
        changed = new
    else:
        wide = int.from_bytes(old, "big") ^ int.from_bytes(new, "big")
        changed = wide.to_bytes(PAGE_BYTES, "big")
    if changed.count(0) < _FEW_ZEROS:
        return [(0, new)]
    return [(found.start(), new[found.start() : found.end()]) for found in _RUN.finditer(changed)]


def patched(old: bytes, ranges: Ranges) -> bytes:
    """Return the page with the ranges written into it. Raises ValueError if one does not fit."""
    page = bytearray(old)
    for start, data in ranges:
        if start + len(data) > PAGE_BYTES:
            raise ValueError(f"bytes {start} to {start + len(data)} of a page of {PAGE_BYTES}")
        page[start : start + len(data)] = data
    return bytes(page)
