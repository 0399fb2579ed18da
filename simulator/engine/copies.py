"""The existing copies: those on disks, as a loss of power now would leave them, except those that a life gives up."""

from __future__ import annotations

from collections.abc import Callable

from buckram.types import BookieId, EntryId, LedgerId
from simulator.engine.inspection import WorldInspector
from simulator.engine.world import World


class Copies:
    """Looks up copies on the disks of one life. `gone`: returns whether a bookie's copies of a ledger do not count."""

    def __init__(self, world: World, gone: Callable[[BookieId, LedgerId], bool]) -> None:
        self._world, self._gone, self._inspector = world, gone, WorldInspector(world)
        self._runs: dict[tuple[BookieId, LedgerId], list[tuple[EntryId, int]]] = {}
        self._at = -1

    def held(self, bookie: BookieId, ledger: LedgerId, entries: list[EntryId]) -> set[EntryId]:
        """Return which of the entries the bookie would have after a loss of power; none if its copies are gone."""
        if not entries or self._gone(bookie, ledger):
            return set()
        return self.on_disk(bookie, ledger, entries)

    def on_disk(self, bookie: BookieId, ledger: LedgerId, entries: list[EntryId]) -> set[EntryId]:
        """Return which of the entries are on the bookie's disk.

        A disk is opened once in each step of the life, since nothing changes within a step.
        """
        if self._at != self._world.loop.steps:
            self._at = self._world.loop.steps
            self._runs.clear()
        if (bookie, ledger) not in self._runs:
            self._runs[bookie, ledger] = self._inspector.runs_on_disk(bookie, ledger)
        runs = self._runs[bookie, ledger]
        return {entry for entry in entries if any(first <= entry < first + count for first, count in runs)}

    def count(self, ledger: LedgerId, entry: EntryId, members: tuple[BookieId, ...]) -> int:
        """Return how many of the members have the entry."""
        return sum(bool(self.held(bookie, ledger, [entry])) for bookie in members)
