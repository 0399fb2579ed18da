"""Finds runs of v2 ADD frames in received bytes, with one unpack and a few comparisons per entry.

`scan_add_frames` is the reference of its compiled twin (`_hot.c`); `hot.py` chooses between them.

Not here: what a run of adds is (`core/wire/adds.py`).
"""

from __future__ import annotations

import struct

from buckram.types import Buffer, EntryId, LedgerId

ADD = struct.Struct(">II20sqqq")
"""Length, packet header, key; ledger, entry and LAC of the stored entry."""
_MIN_PACKET = 24 + 24
"""Header, key, then ledger, entry and LAC of the stored entry."""

Row = tuple[int, int, LedgerId, EntryId, int, int, EntryId, int]
"""Start and end, ledger, first id, entries, flags, greatest LAC, stride or 0, as in adds.AddRun."""


def scan_add_frames(chunk: Buffer, offset: int, max_packet: int, max_run_bytes: int) -> tuple[int, list[Row]]:
    """Return the offset of the unconsumed rest, and the runs.

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
            start, cap = offset, min(size, offset + max_run_bytes)
            run_ledger, run_header, run_key, run_length = ledger, header, key, length
            first, top, stride = entry, lac, length + 4
        next_entry = entry + 1
        offset = end
    if start >= 0:
        rows.append((start, offset, run_ledger, first, next_entry - first, run_header & 0xFFFF, top, stride))
    return offset, rows
