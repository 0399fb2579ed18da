"""Scans a segment without a good footer: walks its blocks and rebuilds its index and ledger states.

A damaged block at the end of the log is a write that never finished; before a good block it is lost acknowledged data.
Blocking; used at start and when a footer turns out to be damaged.
"""

from __future__ import annotations

from dataclasses import dataclass

from buckram.bookie.storage.index import LedgerIndex, SegmentIndex
from buckram.bookie.storage.ledger_table import record_of
from buckram.core.storage.ledger_state import LedgerState
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
from buckram.disk.trouble import harmless
from buckram.seams import File

_CHUNK = 4 << 20
_PIECE = 64 << 10


@dataclass(slots=True)
class Scanned:
    """What a segment's blocks hold. `damaged`: a block is bad although later ones are good, or is unreadable.

    `torn`: after the last good block stands the header of one more. `checksum`: of the block that ends at the offset
    that was asked for. `digest`: of all good blocks that hold something, so that damage is told from more damage.
    """

    index: SegmentIndex
    log_end: int = 0
    runs: int = 0
    damaged: bool = False
    torn: bool = False
    checksum: int | None = None
    digest: int = 1


class _Window:
    """A sliding view of the file; unreadable pieces read as zeros and are remembered."""

    def __init__(self, file: File) -> None:
        self._file, self.size = file, file.size()
        self._start, self._data = 0, b""
        self.unreadable = False

    def at(self, offset: int, length: int) -> tuple[bytes, int]:
        """Data and the index in it where `offset` is; at least `length` bytes follow unless the file ends."""
        if not (self._start <= offset and offset + length <= self._start + len(self._data)):
            self._start = offset
            self._data = self._read(offset, min(max(length, _CHUNK), max(0, self.size - offset)))
        return self._data, offset - self._start

    def _read(self, offset: int, length: int) -> bytes:
        try:
            return self._file.read(offset, length)
        except OSError as error:
            if harmless(error):
                raise  # it may be whole: nothing may be concluded from it
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
        data, at = self.at(offset, BLOCK_HEADER)
        sizes = block_span(data, at, segment, salt, offset)
        if sizes is None:
            return None
        data, at = self.at(offset, BLOCK_HEADER + sizes[0])
        return open_block(data, at, segment, salt, offset)

    def next_block(self, offset: int, segment: int, salt: int) -> Block | None:
        """The first good block that begins after `offset`."""
        offset += SECTOR
        while offset < self.size:
            data, at = self.at(offset, min(_CHUNK, self.size - offset))
            # First bytes of all sectors: a search through everything would take seconds.
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
    """Walk all blocks. Never fails on bad bytes or sectors: what is good is kept. `ask`: the checksum of the block
    that ends there is wanted. OSError if it cannot be read just now."""
    window = _Window(file)
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
            if isinstance(item, LedgerState):
                _apply_state(result.index, segment, item)
            else:
                _apply_run(result, segment, item)
    result.damaged = result.damaged or window.unreadable
    data, at = window.at(offset, BLOCK_HEADER)
    result.torn = block_span(data, at, segment, salt, offset) is not None
    return result


def _apply_state(index: SegmentIndex, segment: int, state: LedgerState) -> None:
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
        # Its state was in a damaged block; the frame itself still tells the key.
        ledger_index = result.index.ledgers[ledger] = LedgerIndex(segment, record_of(LedgerState(ledger, key)))
    result.index.overlays += ledger_index.insert(first, count, offset, length, even=even)
    ledger_index.bytes += length
    result.runs += 1
    record = ledger_index.record
    record.lac, record.last = max(record.lac, lac), max(record.last, first + count - 1)
