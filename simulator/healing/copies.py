"""The existing copies: those on disks, as a loss of power now would leave them, except on bookies lost for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buckram.types import BookieId, EntryId, LedgerId
from simulator.engine.inspection import WorldInspector
from simulator.engine.world import World

if TYPE_CHECKING:
    from simulator.healing.rules import Rules


class Copies:
    """Looks up copies on the disks of one life."""

    def __init__(self, rules: Rules, world: World) -> None:
        self._rules, self._world, self._inspector = rules, world, WorldInspector(world)
        self._runs: dict[tuple[BookieId, LedgerId], list[tuple[EntryId, int]]] = {}
        self._at = -1

    def held(self, bookie: BookieId, ledger: LedgerId, entries: list[EntryId]) -> set[EntryId]:
        """Return which of the entries the bookie would have after a loss of power; none if it is lost for good."""
        if bookie in self._rules.lost or ledger in self._rules.gone or not entries:
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
