"""Opening a directory as a store: superblock, footers, and a scan of the segments that have none (the active one).

Blocking, before anything is served. It finds out whether acknowledged data may be missing (limbo) and persists that.
"""

from __future__ import annotations

import itertools
import logging
import random
import uuid

from buckram.bookie.ledger_table import LedgerRecord, Losses
from buckram.bookie.log_scan import Scanned, scan_segment
from buckram.bookie.open_files import OpenFiles
from buckram.bookie.page_cache import PageCache
from buckram.bookie.segments import Footer, Segment
from buckram.bookie.space import SpaceWatch
from buckram.bookie.store_state import MAX_SEGMENT, MIN_SEGMENT, StoreState, fresh_segment
from buckram.bookie.superblock import (
    FORMAT,
    LOG_PREFIX,
    TABLE_PREFIX,
    TEMPORARY,
    SegmentEntry,
    Superblock,
    read_superblock,
    write_superblock,
)
from buckram.config import StoreConfig
from buckram.core.segment_format import TRAILER_SIZE, CorruptBytes, open_trailer, pack_block_header
from buckram.errors import ConfigError
from buckram.seams import Disk, Write

log = logging.getLogger("buckram.store")


def open_state(disk: Disk, config: StoreConfig, rng: random.Random) -> StoreState:
    """Superblock and files; `attach` comes next. ConfigError, CorruptStore, OSError."""
    if not MIN_SEGMENT <= config.segment_bytes <= MAX_SEGMENT:
        raise ConfigError(f"segment_bytes = {config.segment_bytes}: must be from {MIN_SEGMENT} to {MAX_SEGMENT}")
    found = read_superblock(disk)
    fresh = found is None
    if found is None:
        incarnation = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        found = Superblock(incarnation, rng.getrandbits(32))
        write_superblock(disk, found)
    elif found.format < FORMAT:
        log.warning(
            "%s has format %d and gets format %d now: releases that know no more than format %d will not read it any "
            "more",
            disk.directory() or "the bookie's directory", found.format, FORMAT, found.format,
        )
    return StoreState(
        disk, config, found, Losses(found.losses, found.limbo), OpenFiles(disk), PageCache(), SpaceWatch(config),
        fresh=fresh, free=list(found.free), next_number=found.next_number, next_file=found.next_file,
    )


class Opening:
    """One start of a store."""

    def __init__(self, state: StoreState) -> None:
        self._state = state
        self._lost: list[str] = []
        self._torn: list[Segment] = []

    def run(self) -> None:
        """Fill in segments, table and the active segment, and make what was found durable."""
        state = self._state
        self._remove_strays()
        self._load_table()
        unsealed = [segment for entry in state.superblock.segments if (segment := self._load(entry)) is not None]
        if self._lost:
            state.losses.count += 1
            state.losses.limbo = True
            for what in self._lost:
                log.error("acknowledged data may be missing: %s; absent entries are reported as unknown (limbo)", what)
        self._choose_active(unsealed)
        self._count_dead()
        self._settle()

    def _remove_strays(self) -> None:
        """Files that never became part of the store, or no longer are."""
        state = self._state
        listed = {entry.name for entry in state.superblock.segments} | set(state.free) | {state.superblock.table}
        for name in state.disk.names():
            if name == TEMPORARY or (name.startswith((LOG_PREFIX, TABLE_PREFIX)) and name not in listed):
                state.disk.remove(name)
        state.free = [name for name in state.free if name in state.disk.names()]

    def _load_table(self) -> None:
        state, block = self._state, self._state.superblock
        if not block.table:
            return
        try:
            file = state.files.get(block.table)
            trailer = open_trailer(
                file.read(max(0, file.size() - TRAILER_SIZE), TRAILER_SIZE), block.table_number, block.salt
            )
        except OSError as error:
            trailer = None
            log.error("ledger table %s: %s", block.table, error)
        if trailer is None:
            self._lost.append(f"the ledger table {block.table} is missing or damaged")
            return
        state.table.file = Footer(trailer, lambda: state.files.get(block.table), state.cache)

    def _load(self, entry: SegmentEntry) -> tuple[Segment, Scanned] | None:
        """Add the segment to the list; with its scan if it has no good footer."""
        state = self._state
        segment = Segment(entry.seq, entry.name, has_states=entry.states)
        segment.dead_bytes = entry.dead_bytes
        try:
            sealed = state.load_footer(segment)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                log.error("log file %s: %s", entry.name, error)
                sealed = False
            else:
                self._lost.append(f"log file {entry.name} is missing")
                return None
        state.segments.append(segment)
        if sealed:
            return None
        segment.file = state.disk.open(entry.name, direct=True)
        scanned = scan_segment(segment.file, entry.seq, state.salt)
        segment.index, segment.log_end, segment.runs = scanned.index, scanned.log_end, scanned.runs
        scanned.damaged = scanned.damaged or scanned.log_end < entry.log_end
        if scanned.damaged:
            self._lost.append(f"log file {entry.name} has damaged blocks")
        if scanned.torn:
            self._torn.append(segment)
        return segment, scanned

    def _choose_active(self, unsealed: list[tuple[Segment, Scanned]]) -> None:
        """Go on in the last segment that was written to, or in a new one if it is damaged or full."""
        state = self._state
        logs = [one for one in unsealed if one[0].has_states]
        empty = [segment for segment, scanned in logs if scanned.log_end == 0 and not scanned.damaged]
        written = [one for one in logs if one[0] not in empty]
        for (segment, scanned), later in itertools.pairwise(written):
            if scanned.torn and not scanned.damaged and later[0].log_end:
                # The log went on elsewhere only after this block was durable, so it is not a write that was cut short.
                self._lost_later(segment)
        active: Segment | None = None
        newest = max((one.seq for one in state.segments if one.has_states and one not in empty), default=0)
        if written and written[-1][0].seq == newest and not written[-1][1].damaged:
            segment = written[-1][0]
            if segment.log_end < state.config.segment_bytes:
                active = segment
        for segment in empty:
            state.segments.remove(segment)
            if active is None and segment.seq > newest:
                active = segment
                state.segments.append(segment)
            elif state.spare is None and segment.seq > newest:
                state.spare = segment
            else:
                # Its use is over before it began; a later use gets a number of its own.
                self._drop(segment)
        if active is None:
            active = self._create()
            state.segments.append(active)
        state.log.go_on_in(active)
        self._pin(active)

    def _lost_later(self, segment: Segment) -> None:
        log.error("acknowledged data may be missing: the last block of log file %s is damaged (limbo)", segment.name)
        if not self._lost:
            self._state.losses.count += 1
            self._state.losses.limbo = True
            self._lost.append(segment.name)

    def _drop(self, segment: Segment) -> None:
        if segment.file is not None:
            segment.file.close()
        self._state.free.append(segment.name)

    def _create(self) -> Segment:
        state = self._state
        segment = fresh_segment(state.take_number(), f"{LOG_PREFIX}{state.take_file():08d}")
        segment.file = state.disk.open(segment.name, create=True, size=state.file_bytes, direct=True)
        return segment

    def _pin(self, active: Segment) -> None:
        """The records of the active segment live in memory and go on changing."""
        state = self._state
        assert active.index is not None
        for slot in active.index.slots.values():
            record = slot.record
            assert isinstance(record, LedgerRecord)
            record.slot, record.limbo = slot, state.losses.marks(record)
            state.table.pin(record)

    def _count_dead(self) -> None:
        """Burials in the scanned segments may not be counted yet. Too much is harmless: compaction counts exactly."""
        segments = self._state.segments
        buried = [
            slot.state
            for segment in segments if segment.index is not None
            for slot in segment.index.slots.values() if slot.state.epoch
        ]
        for segment in segments:
            if segment.footer is None:
                continue
            for state in buried:
                try:
                    found = segment.footer.find(state.ledger_id)
                except (CorruptBytes, OSError):
                    break
                if found is not None and found.epoch < state.epoch:
                    segment.dead_bytes += found.bytes

    def _settle(self) -> None:
        """Nothing that the scan showed may be taken for durable before it is, nor a torn block for a good one later.

        So every scanned file is synced, and an empty block is written where the log goes on.
        """
        state, active = self._state, self._state.log.segment
        assert active is not None
        for segment in state.segments:
            if segment is active or segment.file is None:
                continue
            if segment in self._torn:
                self._write_empty_block(segment)
            else:
                state.disk.write_now([Write(segment.file, 0, [])])
        state.disk.sync_names()
        fresh = state.superblock.clean or self._changed()
        if fresh:
            # Named by the superblock before it holds anything, so that no acknowledged block is ever in a stray file.
            state.superblock = state.next_superblock(clean=False)
            write_superblock(state.disk, state.superblock)
        if active.log_end:
            self._write_empty_block(active)

    def _write_empty_block(self, segment: Segment) -> None:
        assert segment.file is not None
        state = self._state
        header, span = pack_block_header(segment.seq, state.salt, segment.log_end, b"", state.disk.alignment)
        state.disk.write_now([Write(segment.file, segment.log_end, [header.ljust(span, b"\0")])])
        segment.log_end += span

    def _changed(self) -> bool:
        return self._state.next_superblock() != self._state.superblock


def rescan(state: StoreState, segment: Segment) -> bool:
    """A sealed segment's footer is damaged: rebuild its index from its blocks. False if blocks are damaged, too."""
    expected = segment.log_end
    segment.file = state.disk.open(segment.name, direct=True)
    scanned = scan_segment(segment.file, segment.seq, state.salt)
    segment.index, segment.footer = scanned.index, None
    segment.runs, segment.log_end = scanned.runs, scanned.log_end
    return not scanned.damaged and scanned.log_end >= expected

