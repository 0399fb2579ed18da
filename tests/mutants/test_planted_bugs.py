"""Every planted bug is caught by an invariant: one of eight of the quick ones in each run, all of them in a soak."""

from __future__ import annotations

import pytest
from tests.support.soak import SOAK

from buckram.client.write.completions import Completions
from buckram.core.ledgers.append import AppendWindow
from simulator.ledgers.mutants import MUTANTS, RARE
from simulator.ledgers.subject import Ledgers

LIVES = 40


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in RARE else pytest.mark.share(8)) for name in MUTANTS]
)
def test_mutant_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    found = Ledgers().kill(name, None if SOAK or name in RARE else LIVES)
    assert found.by, f"{name} ({mutant.bug}) was not caught in {found.lives} lives"


def test_mutants_cover_traps_and_invariants() -> None:
    assert len(MUTANTS) >= 20
    named = " ".join(mutant.rows for mutant in MUTANTS.values()).replace(",", " ").split()
    planted_rows = ("1", "2", "3", "4", "5", "6", "8", "9", "10", "11", "12", "13", "14", "16", "17", "28")
    assert [row for row in planted_rows if row not in named] == []
    ids = [f"S{n}" for n in range(1, 21)] + [f"F{n}" for n in range(1, 18)]
    assert [name for name in ids if name not in named] == []


def test_mutants_restore_production_classes() -> None:
    before = dict(AppendWindow.__dict__), dict(Completions.__dict__)
    for mutant in MUTANTS.values():
        with mutant.apply():
            pass
    assert (dict(AppendWindow.__dict__), dict(Completions.__dict__)) == before
