"""State of a ledger that a bookie stores besides its entries, and its bytes in the log, in footers and in ledger
tables.

Format 1 (96 bytes) has no birth. Bookies still read it everywhere but no longer write it. The header of a state frame
and the version in a footer's trailer tell the two formats apart.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from buckram.types import BIRTH_SIZE, NO_BIRTH, NO_ENTRY, EntryId, LedgerId

MAX_LAC_PACKET = 40
_OLD = struct.Struct(">q20sBBHIIqq40s")
_STATE = struct.Struct(">q20sBBHIIqq40s16s")
STATE_SIZE, OLD_STATE_SIZE = _STATE.size, _OLD.size
_FRAME = struct.Struct(">II")
STATE_FRAME_SIZE = _FRAME.size + STATE_SIZE
OLD_STATE_HEADER, STATE_HEADER = 0xB0010000, 0xB0020000
"""Packets of the wire have version 0 to 2 in their highest byte, frames of our own 0xB0."""
STATE_FRAME_LENGTHS = {OLD_STATE_HEADER: 4 + OLD_STATE_SIZE, STATE_HEADER: 4 + STATE_SIZE}
"""The length field of a state frame, by its header."""
_MARK = {size: struct.Struct(f">q20xB{size - 29}x") for size in (OLD_STATE_SIZE, STATE_SIZE)}
_RECORD = {size: struct.Struct(f">q{size - 8}s") for size in (OLD_STATE_SIZE, STATE_SIZE)}
_FENCED, _TOMBSTONE, _HAS_LAC, _ADMITTED, _PROVEN = 1, 2, 4, 8, 16
"""Earlier releases ignore _PROVEN; states that they wrote count as proven if they are _ADMITTED."""
assert STATE_SIZE - OLD_STATE_SIZE == BIRTH_SIZE


@dataclass(slots=True)
class StoredLedgerState:
    """All that is stored of a ledger besides its entries. The newest state replaces all earlier ones.

    `lac` is the highest known (of adds and explicit ones), `last` the highest entry id stored, both NO_ENTRY for none.
    `epoch` counts deletions: data of an older epoch is dead. `born` is the number of losses (limbo marks) that the
    store had suffered when the ledger was certainly new; a store with more of them may have lost part of it. `birth`
    distinguishes ledgers that had the same id; NO_BIRTH if unknown. `proven`: metadata confirmed key and birth. Without
    that they come from the first request and are replaced by what metadata says (F14).
    """

    ledger_id: LedgerId
    master_key: bytes
    fenced: bool = False
    tombstone: bool = False
    admitted: bool = False
    born: int = 0
    epoch: int = 0
    lac: EntryId = NO_ENTRY
    last: int = NO_ENTRY
    explicit_lac: bytes | None = None
    birth: bytes = NO_BIRTH
    proven: bool = False

    def pack(self) -> bytes:
        packet = self.explicit_lac
        flags = self.fenced * _FENCED | self.tombstone * _TOMBSTONE | self.admitted * _ADMITTED | self.proven * _PROVEN
        if packet is not None:
            flags |= _HAS_LAC
        return _STATE.pack(
            self.ledger_id,
            self.master_key,
            flags,
            len(packet or b""),
            0,
            self.born,
            self.epoch,
            self.lac,
            self.last,
            packet or b"",
            self.birth,
        )

    def frame(self) -> bytes:
        return _FRAME.pack(4 + STATE_SIZE, STATE_HEADER) + self.pack()


def unpack_state(data: bytes, at: int = 0, size: int = STATE_SIZE) -> StoredLedgerState:
    """Decode the state at data[at:]; `size` selects the format."""
    ledger_id, key, flags, length, _, born, epoch, lac, last, packet = _OLD.unpack_from(data, at)
    return StoredLedgerState(
        ledger_id,
        key,
        bool(flags & _FENCED),
        bool(flags & _TOMBSTONE),
        bool(flags & _ADMITTED),
        born,
        epoch,
        lac,
        last,
        packet[:length] if flags & _HAS_LAC else None,
        NO_BIRTH if size == OLD_STATE_SIZE else data[at + OLD_STATE_SIZE : at + STATE_SIZE],
        bool(flags & (_ADMITTED | _PROVEN)),
    )


def state_marks(records: bytes, size: int = STATE_SIZE) -> list[tuple[int, bool]]:
    """Return (ledger, tombstone) of packed states, for listings, at a tenth of the cost of whole states."""
    return [(ledger, flags & _TOMBSTONE != 0) for ledger, flags in _MARK[size].iter_unpack(records)]


def packed_states(records: bytes, size: int = STATE_SIZE) -> Iterator[tuple[int, bytes]]:
    """Return packed states of either format as the ledger and the remaining bytes in the present format."""
    if size == STATE_SIZE:
        return _RECORD[size].iter_unpack(records)
    return ((ledger, rest + NO_BIRTH) for ledger, rest in _RECORD[size].iter_unpack(records))
