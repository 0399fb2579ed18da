"""Ledgers that hold data of objects, and those of them that nobody needs any more.

A ledger is *open* while its writer may add to it, then *sealed*; it is *dead* when it is sealed and no object has bytes
in it, and stays known until it is reported deleted. Not here: deleting it (`state/objects/garbage_collection.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from buckram.core.objects.rows import Extent
from buckram.types import LedgerId

OPEN, SEALED, DEAD = 0, 1, 2


class LedgerUse:
    """State of one ledger: its phase, the references to it, live bytes, all bytes, its writer.

    `time_us` is when it was begun, and of a dead one when it died.
    """

    __slots__ = ("live", "references", "state", "time_us", "total", "writer")

    def __init__(self, state: int, references: int, live: int, total: int, time_us: int, writer: str = "") -> None:
        self.state, self.references, self.live, self.total = state, references, live, total
        self.time_us, self.writer = time_us, writer


class LedgerSpace:
    """Ledgers of objects by id."""

    def __init__(self) -> None:
        self._ledgers: dict[LedgerId, LedgerUse] = {}
        self.now_us = 0
        """The time of the log, set by the index before each command."""
        self.dead: dict[LedgerId, int] = {}
        """Dead ledgers, with the times of the log at which they died."""
        self.open: dict[LedgerId, str] = {}
        """Ledgers that are open, with their writers."""
        self.live_bytes = 0
        """Bytes of objects, in all ledgers; copies count each time."""

    def __contains__(self, ledger: LedgerId) -> bool:
        return ledger in self._ledgers

    def __len__(self) -> int:
        return len(self._ledgers)

    def usable(self, extents: Iterable[Extent]) -> bool:
        """Return whether all of these ledgers are known and not dead."""
        return all((row := self._ledgers.get(extent.ledger)) is not None and row.state != DEAD for extent in extents)

    def begin(self, ledger: LedgerId, writer: str) -> bool:
        """Register a ledger that is about to be written. Return False if it is known already."""
        if ledger in self._ledgers:
            return False
        self._ledgers[ledger] = LedgerUse(OPEN, 0, 0, 0, self.now_us, writer)
        self.open[ledger] = writer
        return True

    def seal(self, ledger: LedgerId, total: int) -> None:
        """Seal a ledger, to which nothing is added any more; it holds `total` bytes."""
        row = self._ledgers.get(ledger)
        if row is not None and row.state == OPEN:
            row.state, row.total = SEALED, max(total, row.live)
            del self.open[ledger]
            self._judge(ledger, row)

    def refer(self, extents: Iterable[Extent]) -> None:
        for extent in extents:
            row = self._ledgers[extent.ledger]
            row.references += 1
            row.live += extent.length
            self.live_bytes += extent.length

    def release(self, extents: Iterable[Extent]) -> None:
        for extent in extents:
            row = self._ledgers[extent.ledger]
            row.references -= 1
            row.live -= extent.length
            self.live_bytes -= extent.length
            self._judge(extent.ledger, row)

    def _judge(self, ledger: LedgerId, row: LedgerUse) -> None:
        if row.state == SEALED and row.references == 0:
            row.state, row.time_us = DEAD, self.now_us
            self.dead[ledger] = self.now_us

    def set_back(self, time_us: int) -> None:
        """Move times after this one back to it: the time of the log was ahead."""
        for row in self._ledgers.values():
            row.time_us = min(row.time_us, time_us)
        self.dead = {ledger: min(at, time_us) for ledger, at in self.dead.items()}

    def gone(self, ledgers: Iterable[LedgerId]) -> None:
        """Forget these dead ledgers, which are deleted."""
        for ledger in ledgers:
            if ledger in self.dead:
                del self.dead[ledger], self._ledgers[ledger]

    def sparse(self, share: float) -> dict[LedgerId, int]:
        """Return sealed ledgers of which at most this share is live, with the number of references to each."""
        return {
            ledger: row.references
            for ledger, row in self._ledgers.items()
            if row.state == SEALED and row.references and row.live <= share * row.total
        }

    def dump(self) -> list[Any]:
        return [
            [ledger, row.state, row.references, row.live, row.total, row.time_us, row.writer]
            for ledger, row in self._ledgers.items()
        ]

    @classmethod
    def load(cls, rows: Sequence[Sequence[Any]]) -> LedgerSpace:
        space = cls()
        for ledger, *fields in rows:
            row = space._ledgers[ledger] = LedgerUse(*fields)
            space.live_bytes += row.live
            if row.state == DEAD:
                space.dead[ledger] = row.time_us
            elif row.state == OPEN:
                space.open[ledger] = row.writer
        return space
