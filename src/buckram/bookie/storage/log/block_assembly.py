"""Assembles the block of one group commit in the ring, and the zeros that go before the next blocks.

Not here: which adds belong to a block and when it is written (`bookie/storage/log/group_commit.py`).
"""

from __future__ import annotations

import mmap

from buckram.bookie.storage.log.block import Group
from buckram.bookie.storage.log.tail_ring import TailRing
from buckram.bookie.storage.segments.segments import Segment
from buckram.core.storage.segment_format import BLOCK_HEADER, pack_block_header
from buckram.seams import Write
from buckram.types import Buffer

PREZERO_BELOW, PREZERO_BYTES = 32 * 1024, 256 * 1024
"""Zeros are written after a block smaller than PREZERO_BELOW that enters untouched space of its file, up to the next
multiple of PREZERO_BYTES (shifted by a phase of the store). Syncing the first write to a place makes the file system
commit its journal, three times the cost of a small block. Large blocks do not notice, and zeros before them would
double what is written."""
_SMALL = 4096
"""A slice of a chunk that is shorter than this is copied rather than viewed."""
_FEW = 256
"""Maximum number of parts that are handed over singly; more are joined first, because each one costs two calls."""
_ZEROS = bytes(4096)
_PREZEROS: Buffer = memoryview(mmap.mmap(-1, PREZERO_BYTES))


class BlockAssembly:
    """Turns groups into blocks of the log, one after the other.

    `alignment` is the disk's unit of writing, `soft_limit` the file offset beyond which the log goes on in the next
    file; both in bytes.
    """

    def __init__(self, ring: TailRing, salt: int, alignment: int, soft_limit: int) -> None:
        self._ring, self._salt, self._alignment, self._soft_limit = ring, salt, alignment, soft_limit
        # Replicas have the same bytes at the same places: they should not all prezero at the same entry.
        self.phase = salt % (PREZERO_BYTES // 4096) * 4096

    def assemble(self, group: Group) -> Write:
        """Copy the block of `group` to the ring's head and return the write that makes it durable."""
        parts: list[Buffer] = []
        for chunk, start, end in group.slices:
            if end - start == len(chunk):
                parts.append(chunk)
            elif end - start < _SMALL:
                parts.append(chunk[start:end])
            else:
                parts.append(memoryview(chunk)[start:end])
        # The checksum takes bytes alone. Where all parts are bytes, they are copied once, to the ring.
        payload = [part for part in parts if type(part) is bytes]
        if len(payload) < len(parts) or len(parts) > _FEW:
            payload = [b"".join(parts)]
        group.slices.clear()
        segment, ring = group.segment, self._ring
        header, span = pack_block_header(segment.seq, self._salt, group.start, payload, self._alignment)
        group.checksum = int.from_bytes(header[-4:], "big")
        segment.base = ring.head - group.start
        head = ring.head
        gap = _ZEROS[: span - BLOCK_HEADER - group.size]
        if span < PREZERO_BELOW:
            ring.put(head, b"".join((header, *payload, gap)))
        else:
            at = head
            for part in (header, *payload, gap):
                ring.put(at, part)
                at += len(part)
        ring.head = head + span
        assert segment.file is not None
        return Write(segment.file, group.start, [*ring.parts(head, span), *self._prezero(segment, group.start, span)])

    def _prezero(self, segment: Segment, start: int, span: int) -> list[Buffer]:
        """Return the zeros to write after a small block: the next ones then overwrite allocated space."""
        end = start + span
        if end <= segment.zeroed_to:
            return []
        segment.zeroed_to = end
        stop = min(
            end + PREZERO_BYTES - (end + self.phase) % PREZERO_BYTES,
            self._soft_limit // 4096 * 4096,
            max(end, segment.limit // 4096 * 4096),
        )
        if span > PREZERO_BELOW or stop <= end:
            return []
        segment.zeroed_to = stop
        return [_PREZEROS[: stop - end]]
