"""Planted bugs of archives: of forks, history, exports, imports, retention, deletion and the files at their place."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.archives.plan import ArchivesPlan
from simulator.engine import hunting
from simulator.engine.edits import edited


@dataclass(frozen=True, slots=True)
class Mutant(hunting.Mutant[ArchivesPlan]):
    """A planted bug. `actors` are those that a life must have so that it can show."""

    actors: tuple[str, ...] = ()

    def suits(self, plan: ArchivesPlan) -> bool:
        return all(actor in plan.actors for actor in self.actors)


_LOCATIONS = "buckram.streams.shared.locations"

MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "part-unsynced",
            "history",
            "a file of history has its name before its bytes are durable",
            edited((f"{_LOCATIONS}:_write_durably", "FILES.sync(target)", "pass")),
            actors=("offloader",),
        ),
    )
}

__all__ = ["MUTANTS", "Mutant"]
