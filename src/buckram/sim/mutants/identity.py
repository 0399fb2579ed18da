"""Planted bugs about which ledger it is: absence believed too soon or not at all, births not looked at."""

from __future__ import annotations

from typing import Any

from buckram.bookie.admission import Admission
from buckram.client.ensemble_change import EnsembleChange
from buckram.sim.mutants.base import Mutant, plant

_made = Admission.__init__


def _takes_anybody(self: Admission, *args: Any, **kwargs: Any) -> None:
    _made(self, *args, **kwargs)
    self._anybody = True


MUTANTS = [
    Mutant("absent-is-admitted", "I6, F5", "adds of a ledger that metadata does not know are taken",
           plant((Admission, "__init__", _takes_anybody), (EnsembleChange, "_is_reborn", lambda self, bookie: False)),
           ("D5-delete",)),
]  # fmt: skip
