"""Decision whether a cluster is healed, from successive looks at it. Pure.

Not here: how a look is taken (`run.py`).
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from buckram.types import LedgerId

ENDS_OF_CHECKS = 3
"""The first one was before, the second may be of a check that had begun before; the third is of one that had not."""


class Look(NamedTuple):
    """Look at a cluster: `why` names a problem other than copies being made, `marked` the ledgers that are marked or
    name lost bookies, `checked` the time of the auditor's last complete check of all copies."""

    why: str
    marked: Set[LedgerId]
    checked: int


class Healed:
    """Decision whether the cluster is healed. Writers go on meanwhile, so it is enough that each ledger marked at one
    look is whole at some later look. The first look that counts is after all processes are back and the auditor has
    checked all copies since then. Before it, ledgers may have vacant places and entries that writers left out, and none
    of those may lose another copy.

    `everything`: no ledger may be marked at all. `why` says what is missing.
    """

    def __init__(self, *, everything: bool = False) -> None:
        self._everything = everything
        self._checks: set[int] = set()
        self._left: Set[LedgerId] | None = None
        self.why = "the cluster did not answer"

    def after(self, look: Look) -> bool:
        """Return whether the cluster is healed after this further look."""
        self._checks = set() if look.why else self._checks | {look.checked}
        if len(self._checks) < ENDS_OF_CHECKS:
            self._left, self.why = None, look.why or "the auditor has not asked for all copies yet"
            return False
        first = self._left is None or self._everything
        self._left = look.marked if first or self._left is None else self._left & look.marked
        self.why = f"ledgers {sorted(self._left)[:10]} lack copies" if self._left else ""
        return not self._left
