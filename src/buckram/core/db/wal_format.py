"""The layout of SQLite's write-ahead log and of its index in shared memory, as far as replicas write them themselves.

SQLite's page "WAL-mode File Format" has the details. The index is written in the byte order of the machine, in regions
of 32 KiB: an array of page numbers by frame, and a hash table from page numbers to frames. Checksums of frames are left
out (zero): only the recovery of a log after a crash reads them, and a replica's files are never recovered: they are
made anew from the replicated log. Not here: files, locks and mappings (`state/db/table_engine/wal_files.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal, NamedTuple

PAGE_BYTES = 4096
LOG_HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
FRAME_BYTES = FRAME_HEADER_BYTES + PAGE_BYTES
REGION_BYTES = 32 * 1024
INDEX_HEADER_BYTES = 136
_BACKFILLED_AT = 96

_LOG_HEADER = struct.Struct(">IIIII8s")
_LOG_MAGIC, _LOG_VERSION = 0x377F0682, 3007000
_FRAME_HEADER = struct.Struct(">II8s8x")
_INDEX = struct.Struct("=IIIBBHII8s8s")
"""Version, padding, changes, initialised, order of checksums, page size, last frame, pages, frame checksum, salts."""
_PAIR = struct.Struct("=II")
_WORDS = struct.Struct("=10I")
_FIRST_FRAMES = (REGION_BYTES // 2 - INDEX_HEADER_BYTES) // 4
_FRAMES = REGION_BYTES // 2 // 4
_SLOTS = 8192
_PRIME = 383


class BadIndex(Exception):
    """The index in shared memory is not one that SQLite has initialised."""


class IndexHeader(NamedTuple):
    """Header of the index. `last_frame` is 0 for an empty log."""

    changes: int
    last_frame: int
    pages: int
    frame_checksum: bytes
    salts: bytes


def frame_at(frame: int) -> int:
    """Return the offset of a frame in the log's file; frames count from 1."""
    return LOG_HEADER_BYTES + (frame - 1) * FRAME_BYTES


def frame_of(offset: int) -> int | None:
    """Return the frame whose header is at this offset; None if no header is."""
    frame, rest = divmod(offset - LOG_HEADER_BYTES, FRAME_BYTES)
    return frame + 1 if rest == 0 and frame >= 0 else None


def log_header(salts: bytes) -> bytes:
    """Return the first bytes of a log; its checksum is left out."""
    return _LOG_HEADER.pack(_LOG_MAGIC, _LOG_VERSION, PAGE_BYTES, 0, 0, salts)[:24].ljust(LOG_HEADER_BYTES, b"\0")


def frame_header(page: int, pages: int, salts: bytes) -> bytes:
    """Return the header of a frame. `pages`: the size of the database after a commit; 0 unless the frame ends a
    transaction.
    """
    return _FRAME_HEADER.pack(page, pages, salts)


def parse_frame_header(header: bytes) -> tuple[int, int]:
    """Return the page, and the size of the database in pages if the frame commits, else 0."""
    page, pages, _ = _FRAME_HEADER.unpack(header)
    return page, pages


def read_index_header(region: memoryview) -> IndexHeader:
    """Parse the header of the index. Raises BadIndex."""
    first, second = bytes(region[:48]), bytes(region[48:96])
    version, _, changes, initialised, _, _, last, pages, checksum, salts = _INDEX.unpack_from(first)
    if first != second or not initialised or version != _LOG_VERSION or _sum(first) != first[40:48]:
        raise BadIndex("the index of the write-ahead log is not initialised, or was changed by another program")
    return IndexHeader(changes, last, pages, checksum, salts)


def encode_index_header(header: IndexHeader, order: int) -> bytes:
    """Return one copy of the header of the index; `order` is the byte that gives the order of checksums."""
    size = (PAGE_BYTES & 0xFF00) | (PAGE_BYTES >> 16)
    raw = _INDEX.pack(_LOG_VERSION, 0, header.changes, 1, order, size, header.last_frame, header.pages, *header[3:])
    return raw + _sum(raw)


def backfilled(region: memoryview) -> int:
    """Return the number of frames that a checkpoint has copied into the database file."""
    return int.from_bytes(region[_BACKFILLED_AT : _BACKFILLED_AT + 4], _order())


def _order() -> Literal["little", "big"]:
    return "little" if _PAIR.pack(1, 0)[0] else "big"


def _sum(raw: bytes) -> bytes:
    """Return the checksum of the first forty bytes of a header."""
    one = two = 0
    words = _WORDS.unpack_from(raw)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return _PAIR.pack(one, two)


def regions_for(frame: int) -> int:
    """Return the number of regions that the index of a log with this last frame has."""
    return 1 if frame <= _FIRST_FRAMES else 1 + -(-(frame - _FIRST_FRAMES) // _FRAMES)


def add_frames(regions: Sequence[memoryview], first: int, pages: Sequence[int]) -> None:
    """Enter frames from `first` on into the index, one for each page. No reader sees them before the header includes
    them.
    """
    frame = first
    done = 0
    while done < len(pages):
        number = regions_for(frame) - 1
        before = 0 if number == 0 else _FIRST_FRAMES + (number - 1) * _FRAMES
        room = before + (_FIRST_FRAMES if number == 0 else _FRAMES) - frame + 1
        some = pages[done : done + room]
        _add_to_region(regions[number], 0 if number else INDEX_HEADER_BYTES, frame - before, some)
        frame += len(some)
        done += len(some)


def _add_to_region(region: memoryview, begin: int, first: int, pages: Sequence[int]) -> None:
    """Enter frames into one region. `first`: the number of the first frame within the region, from 1 on."""
    half = REGION_BYTES // 2
    numbers, slots = region[begin:half].cast("I"), region[half:REGION_BYTES].cast("H")
    if first == 1:
        region[begin:REGION_BYTES] = bytes(REGION_BYTES - begin)
    elif numbers[first - 1]:
        _forget_after(numbers, slots, first - 1)
    for index, page in enumerate(pages, first):
        slot = page * _PRIME % _SLOTS
        while slots[slot]:
            slot = (slot + 1) % _SLOTS
        numbers[index - 1] = page
        slots[slot] = index


def _forget_after(numbers: memoryview, slots: memoryview, last: int) -> None:
    """Remove the frames that a transaction that was rolled back has left behind."""
    for slot in range(_SLOTS):
        if slots[slot] > last:
            slots[slot] = 0
    for index in range(last, len(numbers)):
        numbers[index] = 0
