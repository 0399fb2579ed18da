"""Which ledgers hold data of objects, and which of them nobody needs any more.

A ledger is *open* while its writer may add to it, then *sealed*; it is *dead* when it is sealed and no object has bytes
in it, and stays known until somebody says that it is deleted. Not here: deleting it (`objects/sweeping.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from buckram.core.objects.rows import Extent
from buckram.types import LedgerId

OPEN, SEALED, DEAD = 0, 1, 2


class Space:
    """The ledgers by id, each with its state, references, live bytes, all bytes and the time at which it was made."""

    def __init__(self) -> None:
        self._ledgers: dict[LedgerId, list[int]] = {}
        self.dead: dict[LedgerId, None] = {}

    def __contains__(self, ledger: LedgerId) -> bool:
        return ledger in self._ledgers

    def usable(self, extents: Iterable[Extent]) -> bool:
        """Whether all of these ledgers are known and not dead."""
        return all((row := self._ledgers.get(extent.ledger)) is not None and row[0] != DEAD for extent in extents)

    def begin(self, ledger: LedgerId, time_us: int) -> None:
        self._ledgers.setdefault(ledger, [OPEN, 0, 0, 0, time_us])

    def seal(self, ledger: LedgerId, total: int) -> None:
        """Nobody adds to it any more; it holds `total` bytes."""
        row = self._ledgers.get(ledger)
        if row is not None and row[0] == OPEN:
            row[0], row[3] = SEALED, max(total, row[2])
            self._judge(ledger, row)

    def refer(self, extents: Iterable[Extent]) -> None:
        for extent in extents:
            row = self._ledgers[extent.ledger]
            row[1] += 1
            row[2] += extent.length

    def release(self, extents: Iterable[Extent]) -> None:
        for extent in extents:
            row = self._ledgers[extent.ledger]
            row[1] -= 1
            row[2] -= extent.length
            self._judge(extent.ledger, row)

    def _judge(self, ledger: LedgerId, row: list[int]) -> None:
        if row[0] == SEALED and row[1] == 0:
            row[0] = DEAD
            self.dead[ledger] = None

    def gone(self, ledgers: Iterable[LedgerId]) -> None:
        """These dead ledgers are deleted."""
        for ledger in ledgers:
            if ledger in self.dead:
                del self.dead[ledger], self._ledgers[ledger]

    def open_since(self, time_us: int) -> list[LedgerId]:
        """Those that are open and were made before this time."""
        return [ledger for ledger, row in self._ledgers.items() if row[0] == OPEN and row[4] < time_us]

    def sparse(self, share: float) -> list[LedgerId]:
        """Sealed ones of which at most this share is live."""
        return [
            ledger for ledger, row in self._ledgers.items() if row[0] == SEALED and row[1] and row[2] <= share * row[3]
        ]

    @property
    def live_bytes(self) -> int:
        """Bytes of objects, in all ledgers; copies count each time."""
        return sum(row[2] for row in self._ledgers.values())

    def dump(self) -> list[Any]:
        return [[ledger, *row] for ledger, row in self._ledgers.items()]

    @classmethod
    def load(cls, rows: Sequence[Sequence[int]]) -> Space:
        space = cls()
        for ledger, *row in rows:
            space._ledgers[ledger] = list(row)
            if row[0] == DEAD:
                space.dead[ledger] = None
        return space


__all__ = ["DEAD", "OPEN", "SEALED", "Space"]
