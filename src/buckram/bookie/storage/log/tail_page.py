"""The tail page: a mapped page of the directory that records up to where the log is durable.

A torn block at the end of a log may be a write that never finished, or an acknowledged one that was damaged. The end of
each block is recorded after its sync and before its acknowledgements leave, which distinguishes the two. It costs no
system call: the memory of a mapped file outlives a process that is killed. Two sectors are written in turn, each with
its own checksum: if one was being written when the process ended, the other one, about the block before, is valid.
After a loss of power the page may be older than the log: it then promises less than the log has, never more.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from buckram.bookie.storage.log.log_position import Position
from buckram.core.storage.segment_format import SECTOR, crc, extend_crc
from buckram.seams import PAGE_BYTES

NAME = "tail"
_MAGIC = b"BkTl"
_HEAD = struct.Struct(">4sIQQQI")
_PAIR = struct.Struct(">QQ")
_EARLIER = 3
"""Number of log files before the newest whose ends are recorded: at most this many wait for their footers."""
_SUM = struct.Struct(">I")
_SIZE = _HEAD.size + _EARLIER * _PAIR.size
_SLOT = struct.Struct(f"{_HEAD.format}{_EARLIER * _PAIR.size}s")
_PLACES = (slice(0, _SIZE + 4), slice(SECTOR, SECTOR + _SIZE + 4))


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of one sector: where the newest durable block ends, the checksum in that block's header, and where
    the log files ended that were written before. `count` grows with every write."""

    count: int
    end: Position
    checksum: int
    earlier: tuple[Position, ...]


def read_mark(page: bytes | memoryview, salt: int) -> Mark | None:
    """Return the newest valid sector of a page of the store with this salt; None if there is none."""
    found = [mark for at in (0, SECTOR) if (mark := _open_slot(bytes(page[at : at + _SIZE + 4]), salt)) is not None]
    return max(found, key=lambda mark: mark.count, default=None)


def _open_slot(data: bytes, salt: int) -> Mark | None:
    if len(data) < _SIZE + 4 or crc(data[:_SIZE]) != _SUM.unpack_from(data, _SIZE)[0]:
        return None
    magic, salted, count, seq, end, checksum = _HEAD.unpack_from(data)
    if magic != _MAGIC or salted != salt:
        return None
    pairs = [Position(*_PAIR.unpack_from(data, _HEAD.size + at * _PAIR.size)) for at in range(_EARLIER)]
    return Mark(count, Position(seq, end), checksum, tuple(pair for pair in pairs if pair.seq))


def new_page(salt: int, count: int, end: Position, checksum: int) -> bytes:
    """Return a page with two valid sectors, to be written and synced before it is mapped."""
    page = memoryview(bytearray(PAGE_BYTES))
    writer = TailPage(page, salt, Mark(count, end, checksum, ()))
    writer.write(*end, checksum)
    writer.write(*end, checksum)
    return bytes(page)


class TailPage:
    """Writes the page of one process; `mark` is its newest sector so far."""

    def __init__(self, page: memoryview, salt: int, mark: Mark) -> None:
        self._page, self._salt, self._count = page, salt, mark.count
        self._seq, self._offset = mark.end
        self._earlier = bytes(_EARLIER * _PAIR.size)

    def write(self, seq: int, offset: int, checksum: int) -> None:
        """Record that the block that ends at `offset` is durable; call it before any acknowledgement of it leaves."""
        if seq != self._seq:
            self._earlier = (_PAIR.pack(self._seq, self._offset) + self._earlier)[: _EARLIER * _PAIR.size]
            self._seq = seq
        self._offset = offset
        self._count = count = self._count + 1
        body = _SLOT.pack(_MAGIC, self._salt, count, seq, offset, checksum, self._earlier)
        self._page[_PLACES[count & 1]] = body + extend_crc(0, body).to_bytes(4, "big")

    @property
    def end(self) -> Position:
        return Position(self._seq, self._offset)
