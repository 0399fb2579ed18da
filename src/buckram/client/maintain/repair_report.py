"""Progress of a repair of a ledger while it runs, and the report at its end.

Not here: the repair itself (`client/maintain/repair.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from buckram.types import BookieId, EntryId, LedgerId

_NAMED = 5


class RepairProgress(Protocol):
    def __call__(self, done: int, total: int, /) -> None:
        """Take note that `done` replicas of entries were checked so far, of `total`."""
        ...


@dataclass(frozen=True, slots=True)
class Replacement:
    """`new` took the place of `old` in the fragment that begins at `first_entry`."""

    first_entry: EntryId
    old: BookieId
    new: BookieId


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The report of a repair. `healthy`: nothing is left to do."""

    ledger_id: LedgerId
    """The ledger that was repaired."""
    fragments_checked: int
    """Number of fragments that were looked at."""
    replicas_checked: int
    """Number of copies of entries that were looked at."""
    entries_copied: int
    """Number of copies of entries that were written."""
    bytes_copied: int
    """Size of the copied entries as they are stored, bytes."""
    replaced: tuple[Replacement, ...]
    """Members that were gone, and who took their places."""
    problems: tuple[str, ...]
    """Sentences about what could not be repaired; run the repair again later."""

    @property
    def healthy(self) -> bool:
        """Return whether nothing is left to do."""
        return not self.problems


class EntriesWithoutCopy(str):
    """A problem: these entries are missing or bad at a member, and no other member gave a good copy."""

    __slots__ = ("entries",)
    entries: tuple[EntryId, ...]


class NoFreeBookie(str):
    """A problem: a member is gone, and no bookie can take its place."""

    __slots__ = ()


def lost_entries_problem(bookie: BookieId, lost: Mapping[EntryId, str]) -> EntriesWithoutCopy:
    """Return the report's sentence on entries of `bookie` without a good copy elsewhere; `lost` has the reasons."""
    some = ", ".join(map(str, list(lost)[:_NAMED])) + (", ..." if len(lost) > _NAMED else "")
    why = next(iter(lost.values()))
    problem = EntriesWithoutCopy(f"{len(lost)} entries of bookie {bookie} have no good copy elsewhere ({some}): {why}")
    problem.entries = tuple(lost)
    return problem
