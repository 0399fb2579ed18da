"""Whether a cluster is healed, from one look at it after the other. Pure.

Not here: how a look is taken (`run.py`).
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from buckram.types import LedgerId

ENDS_OF_CHECKS = 3
"""The first one was before, the second may be of a check that had begun before; the third is of one that had not."""


class Look(NamedTuple):
    """What is wrong but for copies that are being made; the ledgers that are marked, or name bookies that are lost; and
    when the auditor last ended a check of all copies."""

    why: str
    marked: Set[LedgerId]
    checked: int


class Healed:
    """Writers go on meanwhile, so each ledger that was marked at one moment has to be whole at some moment: a moment
    after everybody was back and the auditor then asked for all copies. Until then ledgers are made with places that
    nobody takes, writers may have left out entries, and one of those may not lose another copy.

    `everything`: none is marked at all. `why` says what is missing.
    """

    def __init__(self, *, everything: bool = False) -> None:
        self._everything = everything
        self._checks: set[int] = set()
        self._left: Set[LedgerId] | None = None
        self.why = "the cluster did not answer"

    def after(self, look: Look) -> bool:
        """Whether it is healed after this look, too."""
        self._checks = set() if look.why else self._checks | {look.checked}
        if len(self._checks) < ENDS_OF_CHECKS:
            self._left, self.why = None, look.why or "the auditor has not asked for all copies yet"
            return False
        first = self._left is None or self._everything
        self._left = look.marked if first or self._left is None else self._left & look.marked
        self.why = f"ledgers {sorted(self._left)[:10]} lack copies" if self._left else ""
        return not self._left
