"""Observing bookies' stores, admission, writers and repair during a life, by wrapping some of their methods.

Planted bugs are applied before, so the judge observes their effects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from buckram.bookie.service.entries.admission import Admission, Verdict
from buckram.bookie.storage.log_scan import Scanned
from buckram.bookie.storage.opening import Opening
from buckram.bookie.storage.segments.segments import Segment
from buckram.bookie.storage.store import Store, TakenAdds
from buckram.bookie.storage.store_state import StoreState
from buckram.bookie.storage.superblock import SegmentEntry
from buckram.bookie.storage.upkeep.compaction import Output, Sources
from buckram.bookie.storage.upkeep.log_files import Growth
from buckram.bookie.storage.upkeep.maintenance import Maintenance
from buckram.client.maintain.repair import _Repair
from buckram.client.shared.ledger_metadata import MetadataCell
from buckram.client.write.ensemble_change import EnsembleChange
from buckram.core.wire.adds import scan_adds
from buckram.types import BookieId, Buffer, EntryId, LedgerId, LedgerMetadata
from simulator.engine.disk import SimDisk
from simulator.engine.loop import PROCESS
from simulator.engine.planting import patched
from simulator.engine.world import World


def _bookie_of(world: World, store: Store) -> BookieId | None:
    """Return the bookie that runs this store in the present process; None for a store that is only inspected."""
    machine = world.machines.get(PROCESS.get(world.loop.world).name)
    if machine is None or machine.bookie is None or machine.bookie.store is not store:
        return None
    return machine.name


@contextmanager
def watch_files(world: World) -> Iterator[None]:
    """Report situations of the files of this world's stores. Stores that are only inspected do not count."""
    write, repair_footer, start, rebuilt = Output.write, Maintenance.repair_footer, Opening.run, Opening._load
    grow = Growth._grow

    def report(state: StoreState, name: str) -> None:
        if isinstance(state.disk, SimDisk):
            world.report.situation(name)

    async def watched_write(self: Output, sources: Sources) -> Segment:
        written = await write(self, sources)
        report(self._state, "compaction output written")
        return written

    async def watched_grow(self: Growth, segment: Segment, size: int, *, reserve: bool) -> None:
        await grow(self, segment, size, reserve=reserve)
        report(self._state, "log file made longer")

    def watched_repair(self: Maintenance, segment: Segment | None) -> None:
        if segment is None:
            report(self._state, "damaged ledger table")
        elif segment.index is None:
            report(self._state, "footer mended")
        repair_footer(self, segment)

    def watched_load(self: Opening, entry: SegmentEntry) -> tuple[Segment, Scanned] | None:
        found = rebuilt(self, entry)
        if found is not None and entry.log_end and not self._state.superblock.clean and not found[1].damaged:
            report(self._state, "footer mended")
        return found

    def watched_start(self: Opening) -> None:
        start(self)
        if self._state.table.file is not None:
            report(self._state, "ledger table loaded at a start")
        if self._torn:
            report(self._state, "log with a torn end")
        if self._missing.seq:
            report(self._state, "log behind its witness")

    with patched(
        (Output, "write", watched_write),
        (Maintenance, "repair_footer", watched_repair),
        (Opening, "run", watched_start),
        (Opening, "_load", watched_load),
        (Growth, "_grow", watched_grow),
    ):
        yield


@contextmanager
def watch_decisions(world: World) -> Iterator[None]:
    """Report situations of admission, writers and repair that cannot be observed from outside."""
    write_down, settle, is_reborn = Admission._write_down, MetadataCell.settle, EnsembleChange._is_reborn
    is_durable = _Repair._is_durable

    def watched_verdict(self: Admission, *arguments: Any) -> Verdict:
        verdict = write_down(self, *arguments)
        if verdict is Verdict.FENCED:
            world.report.situation("admission verdict FENCED")
        return verdict

    async def watched_settle(self: MetadataCell, *, within_s: float) -> LedgerMetadata:
        before = self.in_doubt
        metadata = await settle(self, within_s=within_s)
        if before and not self.in_doubt:
            world.report.situation("a doubt settled")
        return metadata

    def watched_rebirth(self: EnsembleChange, bookie: BookieId) -> bool:
        reborn = is_reborn(self, bookie)
        if reborn:
            world.report.situation("a reborn bookie seen by a writer")
        return reborn

    async def watched_durable(self: _Repair, target: BookieId) -> bool:
        durable = await is_durable(self, target)
        holder = world.machines[target].bookie
        record = None if holder is None or holder.store is None else holder.store.ledger(self._ledger_id)
        if not durable and (record is None or record.tombstone):
            world.report.situation("a copy was collected before metadata named it")
        return durable

    with patched(
        (Admission, "_write_down", watched_verdict),
        (MetadataCell, "settle", watched_settle),
        (EnsembleChange, "_is_reborn", watched_rebirth),
        (_Repair, "_is_durable", watched_durable),
    ):
        yield


@contextmanager
def watch_stores(world: World) -> Iterator[None]:
    """Report inserts and deletions of every bookie of this world to its judge."""
    add_run, take_adds, delete_ledger = Store.add_run, Store.take_adds, Store.delete_ledger

    def watched_add_run(
        self: Store,
        ledger_id: LedgerId,
        first: EntryId,
        count: int,
        lac: EntryId,
        chunk: Buffer,
        start: int,
        end: int,
        *,
        even: bool = False,
        bulk: bool = False,
    ) -> None:
        bookie = _bookie_of(world, self)
        if bookie is not None:
            record = self.ledger(ledger_id)
            fenced = record is not None and (record.fenced or record.tombstone)
            key = None if record is None else bytes(record.master_key)
            world.judge.inserted(bookie, ledger_id, chunk, start, end, fenced, key)
        add_run(self, ledger_id, first, count, lac, chunk, start, end, even=even, bulk=bulk)

    def watched_take_adds(self: Store, *given: Any, **options: Any) -> TakenAdds | None:
        taken = take_adds(self, *given, **options)
        bookie = _bookie_of(world, self)
        if taken is not None and bookie is not None:
            # The bytes that the log was given, and not those that were received. A record changes in `last` and LAC.
            source, end = self._log._chunk, self._log._slice_end
            assert source is not None
            for run in scan_adds(bytes(source[end - taken.size : end]), 0, taken.size + 4)[1]:
                record = self.ledger(run.ledger_id)
                fenced = record is not None and (record.fenced or record.tombstone)
                key = None if record is None else bytes(record.master_key)
                world.judge.inserted(bookie, run.ledger_id, run.chunk, run.start, run.end, fenced, key)
        return taken

    def watched_delete(self: Store, ledger_id: LedgerId) -> None:
        bookie = _bookie_of(world, self)
        if bookie is not None:
            record = self.ledger(ledger_id)
            if record is not None:
                world.judge.deleted_by_bookie(bookie, ledger_id, record.birth, bytes(record.master_key))
        delete_ledger(self, ledger_id)

    Store.add_run = watched_add_run  # type: ignore[method-assign]  # for the time of a life
    Store.take_adds = watched_take_adds  # type: ignore[method-assign]  # as above
    Store.delete_ledger = watched_delete  # type: ignore[method-assign,assignment]  # as above
    try:
        with watch_files(world), watch_decisions(world):
            yield
    finally:
        Store.add_run = add_run  # type: ignore[method-assign]  # as above
        Store.take_adds = take_adds  # type: ignore[method-assign]  # as above
        Store.delete_ledger = delete_ledger  # type: ignore[method-assign]  # as above
