"""Planted bugs of identity: unknown ledgers that are admitted, births and incarnations that are not compared."""

from __future__ import annotations

from typing import Any

from buckram.bookie.service import dispatch
from buckram.bookie.service.entries import admission, fencing, read_replies, reads
from buckram.bookie.service.entries.adds import AddPath
from buckram.bookie.service.entries.admission import Admission
from buckram.bookie.trust import witness
from buckram.client.read import open as opening
from buckram.client.write.ensemble_change import EnsembleChange
from buckram.core.cluster.cookie import decide
from buckram.runtime.net import introductions
from buckram.runtime.net.connection import Connection
from simulator.engine.planting import nothing, plant
from simulator.ledgers.mutants.base import Mutant

_made = Admission.__init__


def _admit_unknown(self: Admission, *args: Any, **kwargs: Any) -> None:
    _made(self, *args, **kwargs)
    self._anybody = True


def _never(*args: Any) -> bool:
    return False


def _no_mismatch(*args: Any) -> str:
    return ""


def _others_say_nothing(mine: str, known: Any, found: Any, past: Any, **rest: Any) -> Any:
    return decide(mine, known, found if found is None or found.incarnation == mine else None, past, **rest)


def _cookie_says_nothing(*args: Any, has_cookie: bool, **rest: Any) -> Any:
    return decide(*args, has_cookie=True, **rest)


def _no_birth(metadata: Any) -> bytes:
    return b""


MUTANTS = [
    Mutant(
        "absent-is-admitted",
        "I6, F5",
        "adds to a ledger that metadata does not know are accepted",
        plant(
            (Admission, "__init__", _admit_unknown),
            (EnsembleChange, "_is_reborn", lambda self, bookie: False),
            (dispatch, "identity_mismatch", _no_mismatch),
            (introductions, "refusal", _no_mismatch),
            (Connection, "check_incarnation", nothing),
        ),
        scenarios=("D5-delete",),
    ),
    Mutant(
        "birth-not-looked-at-by-reads",
        "I8",
        "reads return entries of an older ledger with the same id",
        plant(*((module, "is_other", _never) for module in (dispatch, fencing, read_replies, reads))),
        scenarios=("id-again-empty",),
    ),
    Mutant(
        "birth-not-looked-at-by-adds",
        "I7",
        "adds are stored into an older ledger with the same id",
        plant((AddPath, "_in_doubt", _never)),
        scenarios=("id-again",),
    ),
    Mutant(
        "undeleted-ledger-replaced",
        "I27",
        "a ledger that was not deleted is replaced by another one with its id",
        plant((Admission, "_contradicts", _never)),
        scenarios=("id-twice",),
    ),
    Mutant(
        "tombstone-fences-the-next",
        "I9",
        "a tombstone fences the next ledger with the same id",
        plant((admission, "is_other", _never)),
        scenarios=("id-after-deletion",),
    ),
    Mutant(
        "another-incarnation-says-nothing",
        "73, I28",
        "a bookie whose witness key names another incarnation goes on",
        plant((witness, "decide", _others_say_nothing)),
        scenarios=("old-disk", "woken-replaced"),
        lives=lambda plan: "old disk back" in plan.faults,
        seeds=60,
    ),
    Mutant(
        "removed-cookie-says-nothing",
        "74, I28, I29",
        "a bookie whose cookie was removed while it hung registers again",
        plant((witness, "decide", _cookie_says_nothing)),
        scenarios=("woken-removed",),
    ),
    Mutant(
        "births-not-sent",
        "I12, I7",
        "clients do not send the birth of the ledger",
        plant((opening, "birth_of", _no_birth)),
        scenarios=("id-again-empty",),
    ),
]
