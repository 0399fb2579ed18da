"""The questions of checkers about the simulated world beyond their events: time, disks, disturbances.

Not here: the answers (`simulator/engine/inspection.py`).
"""

from __future__ import annotations

from typing import Protocol

from buckram.types import BookieId, EntryId, LedgerId
from simulator.engine.pace import Pace


class Inspector(Protocol):
    """The inspector of one life. Times are virtual seconds; disks are inspected as after a loss of power now."""

    @property
    def pace(self) -> Pace:
        """Return how slow the life is, so that deadlines can be relative to it."""
        ...

    def now(self) -> float:
        """Return the present virtual time."""
        ...

    def steady(self, host: str, since: float) -> bool:
        """Return whether the host has run without pause, crash or blocked link since then."""
        ...

    def resumed_at(self, host: str) -> float:
        """Return when the host's process went on after its last pause, or -1.0."""
        ...

    def fenced_on_disk(self, bookie: BookieId, ledger_id: LedgerId) -> bool | None:
        """Return whether the bookie would know that the ledger is fenced or deleted; None for an unknown bookie."""
        ...

    def entries_on_disk(
        self, bookie: BookieId, ledger_id: LedgerId, entries: list[EntryId]
    ) -> dict[EntryId, bool] | None:
        """Return for each entry whether the bookie would have it after a power loss; None for an unknown bookie."""
        ...

    def copies_on_disk(
        self, bookie: BookieId, ledger_id: LedgerId, entries: list[EntryId]
    ) -> dict[EntryId, bytes | None] | None:
        """Return the copies that the bookie would read after a power loss; None for an unknown bookie.

        An entry that it does not have is None, one that it cannot read is b"".
        """
        ...

    def superblock_on_disk(self, bookie: BookieId) -> bytes:
        """Return the bookie's superblock, which changes with the set of its files; b"" if there is none."""
        ...

    def unproven_key(self, bookie: BookieId, ledger_id: LedgerId) -> bytes | None:
        """Return the bookie's master key of the ledger if it could not compare it with metadata yet, otherwise None."""
        ...

    def writer_gave_up(self) -> bool:
        """Return whether the client that requested the present change of metadata no longer waits for it."""
        ...
