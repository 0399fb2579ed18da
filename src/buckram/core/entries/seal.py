"""Seals consecutive entries with CRC32C and frames them as v2 ADDs, as nearly all appends are.

`seal_adds` is the reference of its compiled twin (`_hot.c`); `hot.py` chooses between them.

Not here: other digests, and the expected replies (`core/wire/adds.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import google_crc32c

from buckram.types import EntryId, LedgerId

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
