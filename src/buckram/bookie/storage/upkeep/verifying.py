"""Verifies sealed log files piece by piece: each block against its checksum, and then the pages of the footer.

Reads go past the page cache and count as readers of the file. An unreadable piece is a damaged one; a shortage is not.
Not here: how fast, from where and what follows (`bookie/integrity/scrub.py`); the scan at a start
(`bookie/storage/log_scan.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from buckram.bookie.storage.log.log_position import Position
from buckram.bookie.storage.log_scan import BlockWindow
from buckram.bookie.storage.read_results import unless_harmless
from buckram.bookie.storage.segments.bad_entries import BadEntries, Span, union, without
from buckram.bookie.storage.segments.segments import Footer, Segment
from buckram.bookie.storage.store_state import StoreState
from buckram.bookie.storage.upkeep.maintenance import Maintenance
from buckram.core.storage.segment_format import BLOCK_HEADER, CorruptBytes, block_span, open_block, open_page
from buckram.core.storage.segment_format import PAGE as PAGE_BYTES
from buckram.runtime.disk.io_errors import harmless
from buckram.seams import File, Read
from buckram.types import LedgerId

log = logging.getLogger("buckram.store")
PIECE_BYTES = 1 << 20
"""One read: as much as a disk reads at once past the page cache."""
_ALIGNMENT = 4096
_LARGEST_BLOCK = 64 << 20
_SLICE = 100
"""Steps between two pauses of the loop."""
MOST_SPANS = 100_000
"""Maximum number of spans of bad entries that are known at a time; beyond it no more are looked for until some are
healed."""


class BadExtent(NamedTuple):
    """Bytes of a sealed log file that are no valid blocks, from `begin` to before `end`."""

    segment: Segment
    begin: int
    end: int


class Piece(NamedTuple):
    """The result of one step. `next`: where the next one begins. `last`: no sealed file lies behind."""

    bytes: int
    next: Position
    bad: BadExtent | None
    last: bool


class Verifying:
    """Steps over the sealed log files of a store in the order of their numbers."""

    def __init__(self, state: StoreState, maintenance: Maintenance) -> None:
        self._state, self._maintenance = state, maintenance

    def sealed(self) -> list[Segment]:
        """Return the files that can be verified, in the order of their numbers."""
        return sorted((one for one in self._state.segments if one.footer is not None), key=lambda one: one.seq)

    async def piece(self, at: Position) -> Piece:
        """Verify about PIECE_BYTES from `at` on. Raises OSError if they cannot be read just now."""
        left = [one for one in self.sealed() if one.seq >= at.seq]
        if not left:
            return Piece(0, Position(0, 0), None, True)
        segment = left[0]
        offset = at.offset if segment.seq == at.seq else 0
        if offset >= segment.log_end:
            size = await self._footer(segment)
            return Piece(size, Position(segment.seq + 1, 0), None, len(left) == 1)
        self._state.files.hold(segment.name)
        segment.readers += 1
        try:
            after, bad = await self._blocks(segment, offset)
        finally:
            segment.readers -= 1
            self._state.files.release(segment.name)
        extent = BadExtent(segment, offset, after) if bad else None
        return Piece(after - offset, Position(segment.seq, after), extent, False)

    async def _blocks(self, segment: Segment, offset: int) -> tuple[int, bool]:
        """Return the end of the good blocks from `offset` on; or of what is no good block there, and True."""
        disk, salt, size = self._state.disk, self._state.salt, PIECE_BYTES
        while True:
            size = min(size, segment.log_end - offset)
            try:
                data = await self._read(segment, offset, size)
            except OSError as error:
                if harmless(error):
                    raise
                log.error("log file %s cannot be read at %d: %s", segment.name, offset, error)
                data = b""
            good, wanted = await disk.offload(partial(_good_blocks, data, segment.seq, salt, offset))
            if good:
                return offset + good, False
            if wanted <= size or wanted > _LARGEST_BLOCK or offset + wanted > segment.log_end or not data:
                file = self._state.files.get(segment.name)
                return await disk.offload(partial(_after_damage, file, segment.seq, salt, offset, segment.log_end))
            size = wanted

    async def _read(self, segment: Segment, offset: int, size: int) -> bytes:
        """Return bytes of the file, read in pieces that may go past the page cache."""
        loop = asyncio.get_running_loop()
        begin = offset // _ALIGNMENT * _ALIGNMENT
        parts: list[bytes] = []
        for start in range(begin, offset + size, PIECE_BYTES):
            found: asyncio.Future[list[bytes] | OSError] = loop.create_future()
            length = min(PIECE_BYTES, offset + size - start)
            self._state.disk.read(
                [Read(self._state.files.get(segment.name), start, length)],
                lambda outcome, future=found: None if future.done() else future.set_result(outcome),  # type: ignore[misc]
            )
            outcome = await asyncio.shield(found)
            if isinstance(outcome, OSError):
                raise outcome
            parts += outcome
        return b"".join(parts)[offset - begin :]

    async def _footer(self, segment: Segment) -> int:
        """Verify the pages of a footer, and have it rebuilt from the blocks if one is bad. Returns its bytes."""
        footer = segment.footer
        assert footer is not None
        self._state.files.hold(segment.name)
        segment.readers += 1
        file = self._state.files.get(segment.name)
        error: Exception | None = None
        size = footer.trailer.pages * PAGE_BYTES
        try:
            for first in range(0, footer.trailer.pages, PIECE_BYTES // PAGE_BYTES):
                await self._state.disk.offload(partial(_check_pages, footer, file, first))
        except (CorruptBytes, OSError) as problem:
            error = problem
        finally:
            segment.readers -= 1
            self._state.files.release(segment.name)
        if error is not None and segment.footer is footer and segment in self._state.segments:
            log.error("the index of log file %s: %s", segment.name, error)
            unless_harmless(error, f"the index of log file {segment.name}")
            self._maintenance.repair_footer(segment)
            self._state.lookup.segments_changed()
        return size

    # -- which entries

    async def suspects(self, extent: BadExtent) -> dict[LedgerId, list[Span]]:
        """Return the live entries whose newest copy lies in these bytes, by ledger. Raises StoreError or OSError."""
        segment, footer = extent.segment, extent.segment.footer
        found: dict[LedgerId, list[Span]] = {}
        if footer is None:
            return found
        steps = 0
        try:
            for entry in footer.directory():
                record = self._state.table.find(entry.ledger)
                if record is None or record.tombstone or record.epoch != entry.epoch:
                    continue
                for first, count, _, offset, length in footer.runs(entry):
                    steps += 1
                    if steps % _SLICE == 0:
                        await asyncio.sleep(0)
                    if offset < extent.end and offset + length > extent.begin:
                        found.setdefault(entry.ledger, []).append((first, first + count))
        except CorruptBytes as error:
            unless_harmless(error, f"the index of log file {segment.name}")
            self._maintenance.repair_footer(segment)
            return {}
        newest: dict[LedgerId, list[Span]] = {}
        for ledger, spans in found.items():
            if left := await self._newest_here(segment, ledger, spans):
                newest[ledger] = left
        return newest

    async def _newest_here(self, segment: Segment, ledger: LedgerId, spans: Sequence[Span]) -> list[Span]:
        """Return the parts of `spans` of which the newest copy is in this file."""
        left: list[Span] = []
        steps = 0
        for first, end in spans:
            entry = first
            while entry < end:
                steps += 1
                if steps % _SLICE == 0:
                    await asyncio.sleep(0)
                record = self._state.table.find(ledger)
                if record is None or record.tombstone:
                    return []
                found = self._state.lookup.locate(record, entry, end - 1)
                if found is None:
                    entry += 1
                    continue
                where, places, stop = found
                after = min(end, stop, places[-1][0] + places[-1][1])
                if where is segment:
                    left.append((entry, after))
                entry = max(after, entry + 1)
        return union(left)

    # -- what is known to be bad

    def set_good(self, segment: Segment) -> None:
        """Record that all of this file was verified: it has no bad entries."""
        segment.bad = None

    def set_bad(self, segment: Segment, ledger: LedgerId, within: Sequence[Span], bad: Sequence[Span]) -> None:
        """Take note that of the entries `within` these spans of a file exactly those in `bad` are bad."""
        if segment not in self._state.segments:
            return
        known = segment.bad or BadEntries()
        known.replace(ledger, [*without(known.of(ledger), union(within)), *bad])
        segment.bad = known if known else None

    async def forget_healed(self) -> None:
        """Forget bad entries that have a newer copy, or whose ledger is gone. Raises StoreError or OSError."""
        for segment in list(self._state.segments):
            if segment.bad is None:
                continue
            for ledger, spans in segment.bad.ledgers().items():
                self.set_bad(segment, ledger, spans, await self._newest_here(segment, ledger, spans))

    def bad(self) -> dict[LedgerId, list[Span]]:
        """Return all entries that are known to be bad, by ledger."""
        found: dict[LedgerId, list[Span]] = {}
        for segment in self._state.segments:
            if segment.bad is not None:
                for ledger, spans in segment.bad.ledgers().items():
                    found[ledger] = union([*found.get(ledger, ()), *spans])
        return found

    @property
    def bad_entries(self) -> int:
        """Return the number of entries that are known to be bad."""
        return sum(one.bad.entries for one in self._state.segments if one.bad is not None)

    @property
    def too_many(self) -> bool:
        """Return whether more than MOST_SPANS spans are bad: these are to be healed before others are looked for."""
        return sum(one.bad.spans for one in self._state.segments if one.bad is not None) > MOST_SPANS


def _good_blocks(data: bytes, segment: int, salt: int, offset: int) -> tuple[int, int]:
    """Return the bytes of good blocks at the begin of `data`, and how many the block after them needs; 0: none is."""
    at = 0
    while at < len(data):
        block = open_block(data, at, segment, salt, offset + at)
        if block is None:
            sizes = block_span(data, at, segment, salt, offset + at)
            return at, 0 if sizes is None else BLOCK_HEADER + sizes[0]
        at += block.span
    return at, 0


def _after_damage(file: File, segment: int, salt: int, offset: int, end: int) -> tuple[int, bool]:
    """Return where the next good block after `offset` begins, and whether the one at `offset` is bad at all."""
    window = BlockWindow(file)
    if (block := window.block(offset, segment, salt)) is not None and not window.unreadable:
        return offset + block.span, False  # it was read while the device had trouble, or it is very large
    following = window.next_block(offset, segment, salt)
    return (end if following is None else min(end, following.offset)), True


def _check_pages(footer: Footer, file: File, first: int) -> None:
    count = min(PIECE_BYTES // PAGE_BYTES, footer.trailer.pages - first)
    data = file.read(footer.trailer.footer_at + first * PAGE_BYTES, count * PAGE_BYTES)
    for number in range(count):
        open_page(data[number * PAGE_BYTES : (number + 1) * PAGE_BYTES], footer.trailer.segment, first + number)
