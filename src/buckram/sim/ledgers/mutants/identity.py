"""Planted bugs about which ledger it is: absence believed too soon or not at all, births not looked at."""

from __future__ import annotations

from typing import Any

from buckram.bookie.service import admission, dispatch, reads
from buckram.bookie.service.adds import AddPath
from buckram.bookie.service.admission import Admission
from buckram.client.read import open as opening
from buckram.client.write.ensemble_change import EnsembleChange
from buckram.net import introductions
from buckram.net.connection import Connection
from buckram.sim.engine.planting import nothing, plant
from buckram.sim.ledgers.mutants.base import Mutant

_made = Admission.__init__


def _takes_anybody(self: Admission, *args: Any, **kwargs: Any) -> None:
    _made(self, *args, **kwargs)
    self._anybody = True


def _never(*args: Any) -> bool:
    return False


def _nobody(*args: Any) -> str:
    return ""


def _unknown(metadata: Any) -> bytes:
    return b""


MUTANTS = [
    Mutant(
        "absent-is-admitted",
        "I6, F5",
        "adds of a ledger that metadata does not know are taken",
        plant(
            (Admission, "__init__", _takes_anybody),
            (EnsembleChange, "_is_reborn", lambda self, bookie: False),
            (dispatch, "identity_mismatch", _nobody),
            (introductions, "objection", _nobody),
            (Connection, "check_incarnation", nothing),
        ),
        ("D5-delete",),
    ),
    Mutant(
        "birth-not-looked-at-by-reads",
        "I8",
        "data of another ledger of the id answers",
        plant((reads, "is_other", _never), (dispatch, "is_other", _never)),
        ("id-again-empty",),
    ),
    Mutant(
        "birth-not-looked-at-by-adds",
        "I7",
        "adds go into what is here of another ledger of the id",
        plant((AddPath, "_in_doubt", _never)),
        ("id-again",),
    ),
    Mutant(
        "store-kills-the-living",
        "I27",
        "a ledger that was not buried gives way to another that has its id",
        plant((Admission, "_contradicts", _never)),
        ("id-twice",),
    ),
    Mutant(
        "tombstone-fences-the-next",
        "I9",
        "a burial stops the next ledger of the id, too",
        plant((admission, "is_other", _never)),
        ("id-after-burial",),
    ),
    Mutant(
        "names-not-said",
        "I12, I7",
        "clients do not say which ledger of an id they mean",
        plant((opening, "birth_of", _unknown)),
        ("id-again-empty",),
    ),
]
