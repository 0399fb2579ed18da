"""Answers to the questions of checkers about a simulated world: implements `checkers/inspector.py`.

Disks are inspected on a copy, as a loss of power now would leave them, so that no question changes the life.
"""

from __future__ import annotations

import random
from asyncio import events
from typing import TYPE_CHECKING

from buckram.bookie.storage.read_results import Outcome, StoreError
from buckram.bookie.storage.store import Store
from buckram.bookie.storage.superblock import NAME as SUPERBLOCK
from buckram.runtime.disk.memory import MemoryDisk
from buckram.runtime.process.stats import NullStats
from buckram.types import BookieId, EntryId, LedgerId
from simulator.engine.pace import Pace

if TYPE_CHECKING:
    from simulator.engine.world import World


class WorldInspector:
    """An Inspector of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.now = world.loop.time
        self.steady = world.steady
        self.resumed_at = world.resumed_at

    @property
    def pace(self) -> Pace:
        return self._world.pace

    def writer_gave_up(self) -> bool:
        return self._world.metadata.writer_gave_up

    def fenced_on_disk(self, bookie: BookieId, ledger_id: LedgerId) -> bool | None:
        store = self._open_after_power_loss(bookie)
        if store is None:
            return None
        record = store.ledger(ledger_id)
        return record is not None and (record.fenced or record.tombstone)

    def entries_on_disk(
        self, bookie: BookieId, ledger_id: LedgerId, entries: list[EntryId]
    ) -> dict[EntryId, bool] | None:
        store = self._open_after_power_loss(bookie)
        if store is None:
            return None
        runs = store.entries(ledger_id)
        return {e: any(first <= e < first + count for first, count in runs) for e in entries}

    def runs_on_disk(self, bookie: BookieId, ledger_id: LedgerId) -> list[tuple[EntryId, int]]:
        """Return the entries of a ledger that the bookie would have after a power loss, as (first entry, count)."""
        store = self._open_after_power_loss(bookie)
        return [] if store is None else list(store.entries(ledger_id))

    def copies_on_disk(
        self, bookie: BookieId, ledger_id: LedgerId, entries: list[EntryId]
    ) -> dict[EntryId, bytes | None] | None:
        store = self._open_after_power_loss(bookie)
        if store is None:
            return None
        copies: dict[EntryId, bytes | None] = {}

        def keep(outcomes: list[Outcome]) -> None:
            copies.update(zip(entries, [b"" if isinstance(one, StoreError) else one for one in outcomes], strict=True))

        store.read([(ledger_id, entry) for entry in entries], keep)
        return copies

    def superblock_on_disk(self, bookie: BookieId) -> bytes:
        machine = self._world.machines.get(bookie)
        if machine is None or SUPERBLOCK not in machine.device.model.names():
            return b""
        return bytes(machine.device.model.inode(SUPERBLOCK).content)

    def unproven_key(self, bookie: BookieId, ledger_id: LedgerId) -> bytes | None:
        machine = self._world.machines.get(bookie)
        if machine is None or machine.bookie is None or machine.bookie.store is None:
            return None
        record = machine.bookie.store.ledger(ledger_id)
        return None if record is None or record.proven else record.master_key

    def _open_after_power_loss(self, bookie: BookieId) -> Store | None:
        machine = self._world.machines.get(bookie)
        if machine is None:
            return None
        model = machine.device.model.worst_case()
        model.total_bytes = 1 << 40  # a full disk can be inspected, too
        disk = MemoryDisk(model)
        loop = events._get_running_loop()
        events._set_running_loop(None)  # a store that is only inspected must start no background work in this life
        try:
            return Store.open(disk, self._world.configs.store, NullStats(), random.Random(0))
        finally:
            events._set_running_loop(loop)
