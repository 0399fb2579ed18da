"""Opens a directory as a store: superblock, footers, and a scan of the segments that have none (the active one).

This happens before anything is served, and blocks. It detects whether acknowledged data may be missing (limbo) and
persists that.
Not here: the scan itself (`bookie/storage/log_scan.py`).
"""

from __future__ import annotations

import itertools
import logging
import random
from dataclasses import replace

from buckram.bookie.storage.disk_space import Reserve, SpaceWatch
from buckram.bookie.storage.ledger_table import LedgerRecord, Losses
from buckram.bookie.storage.log.log_position import Position, WitnessedPosition, behind
from buckram.bookie.storage.log.tail_page import NAME as TAIL
from buckram.bookie.storage.log.tail_page import Mark, TailPage, new_page, read_mark
from buckram.bookie.storage.log_scan import Scanned, scan_segment
from buckram.bookie.storage.segments.file_cache import OpenFiles, PageCache
from buckram.bookie.storage.segments.segments import Footer, Segment
from buckram.bookie.storage.store_state import MAX_SEGMENT, MIN_SEGMENT, StoreState, fresh_segment
from buckram.bookie.storage.superblock import (
    FORMAT,
    LOG_PREFIX,
    TABLE_PREFIX,
    TEMPORARY,
    SegmentEntry,
    opened,
    read_or_create,
    write_superblock,
)
from buckram.config import StoreConfig
from buckram.core.storage.segment_format import TRAILER_SIZE, CorruptBytes, open_trailer, pack_block_header
from buckram.errors import ConfigError
from buckram.runtime.disk.io_errors import harmless, no_space
from buckram.seams import PAGE_BYTES, Disk, File, Write

log = logging.getLogger("buckram.store")


def open_state(disk: Disk, config: StoreConfig, rng: random.Random) -> StoreState:
    """Read or create the superblock; `Opening` fills in the rest. Raises ConfigError, CorruptStore or OSError."""
    if not MIN_SEGMENT <= config.segment_bytes <= MAX_SEGMENT:
        raise ConfigError(f"segment_bytes = {config.segment_bytes}: must be from {MIN_SEGMENT} to {MAX_SEGMENT}")
    found = read_or_create(disk, rng)
    reserve = Reserve(disk, config.segment_bytes)
    if found.format < FORMAT:
        log.warning(
            "%s has format %d and is upgraded to format %d: releases that know only format %d cannot read it any more",
            disk.directory() or "the bookie's directory",
            found.format,
            FORMAT,
            found.format,
        )
    return StoreState(
        disk,
        config,
        found,
        Losses(found.losses, found.limbo),
        OpenFiles(disk),
        PageCache(),
        SpaceWatch(config),
        reserve,
        free=list(found.free),
        next_number=found.next_number,
        next_file=found.next_file,
    )


class Opening:
    """One start of a store. `claim`: what the witness key in the metadata store says about the directory."""

    def __init__(self, state: StoreState, claim: WitnessedPosition | None = None) -> None:
        self._state, self._claim = state, claim
        self._lost: list[str] = []
        self._torn: list[Segment] = []
        # A position that the log had reached once although it ends earlier now; new blocks go to a later segment.
        self._missing = Position(0, 0)
        self._mark: Mark | None = None

    def run(self) -> None:
        """Fill in the segments, the table and the active segment, and make what was found durable."""
        state = self._state
        self._remove_strays()
        self._read_mark()
        self._load_table()
        unsealed = [segment for entry in state.superblock.segments if (segment := self._load(entry)) is not None]
        self._judge_ends(unsealed)
        if self._lost:
            state.losses.count += 1
            state.losses.limbo = True
            for what in self._lost:
                log.error(
                    "acknowledged data may be missing (loss %d): %s; absent entries are reported as unknown (limbo) "
                    "until every ledger that names this bookie is complete here",
                    state.losses.count,
                    what,
                )
        self._choose_active(unsealed)
        self._count_dead()
        self._settle()

    def _remove_strays(self) -> None:
        """Remove files that the superblock does not name."""
        state = self._state
        listed = {entry.name for entry in state.superblock.segments} | set(state.free) | {state.superblock.table}
        for name in state.disk.names():
            if name == TEMPORARY or (name.startswith((LOG_PREFIX, TABLE_PREFIX)) and name not in listed):
                state.disk.remove(name)
        state.free = [name for name in state.free if name in state.disk.names()]
        for name in state.free:
            with opened(state.disk, name) as file:
                state.sizes[name] = file.size()

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
            if harmless(error):
                raise
            trailer = None
            log.error("ledger table %s: %s", block.table, error)
        if trailer is None:
            if block.lost_table != block.table:
                self._lost.append(f"the ledger table {block.table} is missing or damaged")
                state.superblock = replace(block, lost_table=block.table)
            return
        state.table.file = Footer(trailer, lambda: state.files.get(block.table), state.cache)

    def _load(self, entry: SegmentEntry) -> tuple[Segment, Scanned] | None:
        """Add the segment to the list. Returns it with its scan if it has no valid footer, else None."""
        state = self._state
        segment = Segment(entry.seq, entry.name, has_states=entry.states)
        segment.dead_bytes, segment.made = entry.dead_bytes, entry.made
        try:
            sealed = state.load_footer(segment)
        except OSError as error:
            if harmless(error):
                raise
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
        mark, size = self._mark, segment.file.size()
        asked = mark.end.offset if mark is not None and mark.end.seq == entry.seq else 0
        scanned = scan_segment(segment.file, entry.seq, state.salt, asked)
        segment.index, segment.log_end, segment.runs = scanned.index, scanned.log_end, scanned.runs
        what = ""
        if scanned.damaged or scanned.log_end < entry.log_end:
            what = f"log file {entry.name} has damaged blocks"
        elif size < entry.made and not entry.log_end:
            what = f"log file {entry.name} has {size} bytes, it was made with {entry.made}"
        elif mark is not None and 0 < asked <= scanned.log_end and scanned.checksum != mark.checksum:
            what = f"log file {entry.name} holds another block than was written before {asked}"
        if what:
            scanned.damaged, segment.damage = True, scanned.digest
            if entry.damage != scanned.digest:
                self._lost.append(what)
        segment.made = max(size, segment.made)
        if scanned.torn:
            self._torn.append(segment)
        return segment, scanned

    def _judge_ends(self, unsealed: list[tuple[Segment, Scanned]]) -> None:
        """Compare the ends of the logs with what the tail page and the witness key say about them."""
        state, block, mark, claim = self._state, self._state.superblock, self._mark, self._claim
        known = [] if mark is None else [*mark.earlier, mark.end]
        if mark is None and block.starts and not block.clean:
            self._lost.append(f"the file {TAIL!r} is missing or damaged, so the length of the log is not known")
        if claim is not None and claim.incarnation == block.incarnation:
            known.append(claim.position)
            if claim.starts > block.starts:
                self._lost.append(
                    f"a bookie started {claim.starts} times from the directory, which records "
                    f"{block.starts}: it is a copy"
                )
                self._missing = claim.position
                block = state.superblock = replace(block, starts=claim.starts)
        for position in known:
            what = behind(state.segments, block.next_number, position)
            if what is not None:
                self._lost.append(what)
                self._missing = max(self._missing, position)
        state.next_number = max(state.next_number, self._missing.seq + 1)
        for (segment, scanned), later in itertools.pairwise(self._written(unsealed)):
            if scanned.torn and not scanned.damaged and later[0].log_end:
                # A later segment has blocks, so this block was durable: it is damaged, and not an interrupted write.
                self._lost.append(f"the last block of log file {segment.name} is damaged")

    @staticmethod
    def _written(unsealed: list[tuple[Segment, Scanned]]) -> list[tuple[Segment, Scanned]]:
        return [one for one in unsealed if one[0].has_states and (one[1].log_end or one[1].damaged)]

    def _choose_active(self, unsealed: list[tuple[Segment, Scanned]]) -> None:
        """Make the last segment with blocks the active one, or a new one if that is damaged, too short or full."""
        state = self._state
        written = self._written(unsealed)
        empty = [one[0] for one in unsealed if one[0].has_states and one not in written]
        active: Segment | None = None
        newest = max((one.seq for one in state.segments if one.has_states and one not in empty), default=0)
        if written and written[-1][0].seq == newest and not written[-1][1].damaged and not self._missing.seq:
            segment = written[-1][0]
            if segment.log_end < state.config.segment_bytes:
                active = segment
        newest = max(newest, self._missing.seq)
        for segment in empty:
            state.segments.remove(segment)
            if active is None and segment.seq > newest:
                active = segment
                state.segments.append(segment)
            elif state.spare is None and segment.seq > newest:
                state.spare = segment
            else:
                # Its number is below the newest one, so the file needs another number to be used.
                self._drop(segment)
        if active is None:
            active = self._create()
            state.segments.append(active)
        state.log.go_on_in(active)
        self._pin(active)

    def _drop(self, segment: Segment) -> None:
        if segment.file is not None:
            segment.file.close()
        self._state.free.append(segment.name)
        self._state.sizes[segment.name] = segment.made

    def _create(self) -> Segment:
        """Create a segment in a file whose data is dead, or in a new file.

        If the disk has no room, the file is empty, so that the store can at least be read.
        """
        state = self._state
        reused = state.free.pop(0) if state.free else ""
        segment = fresh_segment(state.take_number(), reused or f"{LOG_PREFIX}{state.take_file():08d}")
        if reused:
            segment.file = state.disk.open(reused, direct=True)
        else:
            segment.file = self._new_file(segment.name, state.first_bytes)
        segment.made = segment.file.size()
        return segment

    def _new_file(self, name: str, size: int) -> File:
        disk = self._state.disk
        try:
            return disk.open(name, create=True, size=size, direct=True)
        except OSError as error:
            if not no_space(error):
                raise
            log.warning("the store starts without room for its log: %s", error)
        return self._state.reserve.run(lambda: disk.open(name, create=True, direct=True))

    def _pin(self, active: Segment) -> None:
        """Pin the records of the active segment, because they change in memory."""
        state = self._state
        assert active.index is not None
        for ledger_index in active.index.ledgers.values():
            record = ledger_index.record
            assert isinstance(record, LedgerRecord)
            record.active_index, record.limbo = ledger_index, state.losses.marks(record)
            state.table.pin(record)

    def _count_dead(self) -> None:
        """Count deletions of scanned segments as dead bytes; maybe some twice, but compaction counts exactly."""
        segments = self._state.segments
        deleted = [
            ledger_index.state
            for segment in segments
            if segment.index is not None
            for ledger_index in segment.index.ledgers.values()
            if ledger_index.state.epoch
        ]
        for segment in segments:
            if segment.footer is None:
                continue
            for state in deleted:
                try:
                    found = segment.footer.find(state.ledger_id)
                except (CorruptBytes, OSError):
                    break
                if found is not None and found.epoch < state.epoch:
                    segment.dead_bytes += found.bytes

    def _settle(self) -> None:
        """Make durable what the scan found: nothing of it may be served before.

        Every scanned file is synced, and an empty block is written at the end of each torn log and of the active one,
        so that a torn block is never taken for a valid one later. The superblock is written before the active log
        changes: it records losses and counts the start, which could not be seen afterwards.
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
        if TAIL not in state.disk.names():
            state.reserve.run(lambda: self._write_page(Position(0, 0), 0))
        state.disk.sync_names()
        # The superblock names every file before blocks go there, so that no acknowledged block is in a stray file.
        state.superblock = state.next_superblock(clean=False, starts=state.superblock.starts + 1)
        self._write_superblock()
        checksum = state.reserve.run(lambda: self._write_empty_block(active)) if active.log_end else 0
        self._write_page(Position(active.seq, active.log_end), checksum)
        self._map_page()
        state.set_limits(active)
        if state.spare is not None:
            state.set_limits(state.spare)
        state.reserve.make()

    def _write_superblock(self) -> None:
        """Write the superblock; on a full disk with space of the reserve, else of files whose data is dead."""
        state = self._state
        while True:
            try:
                return state.reserve.run(lambda: write_superblock(state.disk, state.superblock))
            except OSError as error:
                if not no_space(error) or not state.free:
                    raise
            state.disk.remove(state.free.pop())
            state.superblock = replace(state.superblock, free=tuple(state.free))

    def _write_empty_block(self, segment: Segment) -> int:
        """Write an empty block, synced, at the end of a segment's log. Returns the block's checksum."""
        assert segment.file is not None
        state = self._state
        header, span = pack_block_header(segment.seq, state.salt, segment.log_end, [], state.disk.alignment)
        state.disk.write_now([Write(segment.file, segment.log_end, [header.ljust(span, b"\0")])])
        segment.log_end += span
        return int.from_bytes(header[-4:], "big")

    # -- the tail page

    def _read_mark(self) -> None:
        state = self._state
        if TAIL in state.disk.names():
            with opened(state.disk, TAIL) as file:
                self._mark = read_mark(file.read(0, PAGE_BYTES), state.salt)

    def _write_page(self, end: Position, checksum: int) -> None:
        """Write a tail page with this end, synced."""
        state = self._state
        with opened(state.disk, TAIL, create=TAIL not in state.disk.names()) as file:
            count = 0 if self._mark is None else self._mark.count
            page = new_page(state.salt, count, end, checksum)
            state.disk.write_now([Write(file, 0, [page])])
        self._mark = read_mark(page, state.salt)

    def _map_page(self) -> None:
        log, mark = self._state.log, self._mark
        assert mark is not None
        log.page = TailPage(self._state.disk.map_page(TAIL), self._state.salt, mark)


def rescan(state: StoreState, segment: Segment) -> bool:
    """Rebuild the index of a sealed segment, whose footer is damaged, from its blocks. False if these are damaged, too.

    Raises OSError if the file cannot be read at all; then nothing has changed.
    """
    expected = segment.log_end
    file = state.disk.open(segment.name, direct=True)
    try:
        scanned = scan_segment(file, segment.seq, state.salt)
    except OSError:
        file.close()
        raise
    segment.file = file
    segment.index, segment.footer = scanned.index, None
    segment.runs, segment.log_end = scanned.runs, scanned.log_end
    whole = not scanned.damaged and scanned.log_end >= expected
    segment.damage = 0 if whole else scanned.digest
    return whole
