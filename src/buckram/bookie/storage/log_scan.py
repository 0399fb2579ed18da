"""Scans a segment without a good footer: walks its blocks and rebuilds its index and ledger states.

A damaged block at the end of the log is a write that never finished; before a valid block it is lost acknowledged data.
Scanning blocks; it is used at a start and when a footer turns out to be damaged.
"""

from __future__ import annotations

from dataclasses import dataclass

from buckram.bookie.storage.ledger_table import record_of
from buckram.bookie.storage.segments.index import LedgerIndex, SegmentIndex
from buckram.core.storage.ledger_state import StoredLedgerState
from buckram.core.storage.segment_format import (
    BLOCK_HEADER,
    MAGIC,
    SECTOR,
    Block,
    CorruptBytes,
    Run,
    block_span,
    crc,
    open_block,
    parse_frames,
)
from buckram.runtime.disk.io_errors import harmless
from buckram.seams import File

_CHUNK = 4 << 20
_PIECE = 64 << 10


@dataclass(slots=True)
class Scanned:
    """The contents of a segment's blocks. `damaged`: a block is unreadable, or invalid although later ones are valid.

    `torn`: the header of one more block follows the last valid one. `checksum`: that of the block that ends at the
    offset that was asked for. `digest`: a checksum over all valid blocks that hold something, to recognise new damage.
    """

    index: SegmentIndex
    log_end: int = 0
    runs: int = 0
    damaged: bool = False
    torn: bool = False
    checksum: int | None = None
    digest: int = 1


class BlockWindow:
    """A sliding view of a file of blocks; unreadable pieces read as zeros and are remembered.

    Every method blocks, and raises OSError if the file cannot be read just now.
    """

    def __init__(self, file: File) -> None:
        self._file, self.size = file, file.size()
        self._start, self._data = 0, b""
        self.unreadable = False

    def at(self, offset: int, length: int) -> tuple[bytes, int]:
        """Return data and the index of `offset` in it; at least `length` bytes follow unless the file ends."""
        if not (self._start <= offset and offset + length <= self._start + len(self._data)):
            self._start = offset
            self._data = self._read(offset, min(max(length, _CHUNK), max(0, self.size - offset)))
        return self._data, offset - self._start

    def _read(self, offset: int, length: int) -> bytes:
        try:
            return self._file.read(offset, length)
        except OSError as error:
            if harmless(error):
                raise  # the data may be intact, so this is no damage
            self.unreadable = True
        pieces = []
        for start in range(offset, offset + length, _PIECE):
            size = min(_PIECE, offset + length - start)
            try:
                pieces.append(self._file.read(start, size).ljust(size, b"\0"))
            except OSError as error:
                if harmless(error):
                    raise
                pieces.append(bytes(size))
        return b"".join(pieces)

    def block(self, offset: int, segment: int, salt: int) -> Block | None:
        """Return the block at `offset`; None if there is no valid one."""
        data, at = self.at(offset, BLOCK_HEADER)
        sizes = block_span(data, at, segment, salt, offset)
        if sizes is None:
            return None
        data, at = self.at(offset, BLOCK_HEADER + sizes[0])
        return open_block(data, at, segment, salt, offset)

    def next_block(self, offset: int, segment: int, salt: int) -> Block | None:
        """Return the first valid block that begins after `offset`; None if there is none."""
        offset += SECTOR
        while offset < self.size:
            data, at = self.at(offset, min(_CHUNK, self.size - offset))
            # Only the first bytes of all sectors: a search through all bytes would take seconds.
            heads = data[at::SECTOR]
            number = heads.find(MAGIC[:1])
            while number >= 0:
                where = offset + number * SECTOR
                if block_span(data, at + number * SECTOR, segment, salt, where) is not None:
                    block = self.block(where, segment, salt)
                    if block is not None:
                        return block
                    data, at = self.at(offset, min(_CHUNK, self.size - offset))
                number = heads.find(MAGIC[:1], number + 1)
            # A header lies in one sector, so none is cut in two here.
            offset += max(SECTOR, (len(data) - at) // SECTOR * SECTOR)
        return None


def scan_segment(file: File, segment: int, salt: int, ask: int = 0) -> Scanned:
    """Walk all blocks and keep what is valid; bad bytes or sectors are no error.

    `ask`: the offset where the block ends whose checksum is wanted. Raises OSError if the file cannot be read just now.
    """
    window = BlockWindow(file)
    result = Scanned(SegmentIndex())
    offset = 0
    while True:
        block = window.block(offset, segment, salt) if offset < window.size else None
        if block is None:
            block = window.next_block(offset, segment, salt) if offset < window.size else None
            if block is None:
                break
            result.damaged = True
        offset = result.log_end = block.offset + block.span
        if block.payload:
            result.digest = crc(offset.to_bytes(8, "big"), crc(block.checksum.to_bytes(4, "big"), result.digest)) or 1
        if offset == ask:
            result.checksum = block.checksum
        try:
            items = parse_frames(block.payload, block.offset + BLOCK_HEADER)
        except CorruptBytes:
            result.damaged = True
            continue
        for item in items:
            if isinstance(item, StoredLedgerState):
                _apply_state(result.index, segment, item)
            else:
                _apply_run(result, segment, item)
    result.damaged = result.damaged or window.unreadable
    data, at = window.at(offset, BLOCK_HEADER)
    result.torn = block_span(data, at, segment, salt, offset) is not None
    return result


def _apply_state(index: SegmentIndex, segment: int, state: StoredLedgerState) -> None:
    ledger_index = index.ledgers.get(state.ledger_id)
    if ledger_index is None:
        index.ledgers[state.ledger_id] = LedgerIndex(segment, record_of(state))
        return
    ledger_index.record = record_of(state)
    if state.epoch != ledger_index.epoch:
        ledger_index.clear(state.epoch)
        ledger_index.bytes = 0


def _apply_run(result: Scanned, segment: int, run: Run) -> None:
    ledger, first, count, offset, length, even, lac, key = run
    ledger_index = result.index.ledgers.get(ledger)
    if ledger_index is None:
        # The ledger's state was in a damaged block, but the frame itself has the key.
        ledger_index = result.index.ledgers[ledger] = LedgerIndex(segment, record_of(StoredLedgerState(ledger, key)))
    result.index.overlays += ledger_index.insert(first, count, offset, length, even=even)
    ledger_index.bytes += length
    result.runs += 1
    record = ledger_index.record
    record.lac, record.last = max(record.lac, lac), max(record.last, first + count - 1)
