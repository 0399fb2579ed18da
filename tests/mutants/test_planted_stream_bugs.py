"""Each bug planted in streams is caught by an invariant: one of eight of the quick ones in each run, all in a soak."""

from __future__ import annotations

import pytest
from tests.support.soak import SOAK

from buckram.core.streams.metadata import changes as stream_changes
from buckram.streams.read.batch_source import StreamSource
from buckram.streams.write import roll
from buckram.streams.write.segment import SegmentWriter
from simulator.streams.mutants import MUTANTS
from simulator.streams.names import INVARIANTS
from simulator.streams.subject import Streams

RARE = ("epoch-ignored", "claim-keeps-epoch", "overtaking", "skips-silently", "no-marks", "atomic-cut",
        "older-than-asked", "cursors-forgotten", "producers-trimmed", "lost-reply-is-yes", "no-idle-mark",
        "empty-rows", "lost-reply-is-no", "wrong-bases", "no-replay", "last-batch-forgotten", "forgets-first",
        "ended-means-end", "transaction-forgotten", "stale-pages", "next-entry", "fenced-for-anybody")  # fmt: skip
"""Mutants that take more than a few seconds."""
LIVES = 8


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in RARE else pytest.mark.share(8)) for name in MUTANTS]
)
def test_mutant_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    found = Streams().kill(name, None if SOAK or name in RARE else LIVES)
    assert found.by in INVARIANTS, f"{name} ({mutant.bug}) was not caught in {found.lives} lives"


def test_mutants_are_described() -> None:
    assert len(MUTANTS) >= 30
    assert all(mutant.rows and mutant.bug for mutant in MUTANTS.values())


def test_mutants_restore_production_classes() -> None:
    before = [dict(vars(owner)) for owner in (stream_changes, roll, SegmentWriter, StreamSource)]
    for mutant in MUTANTS.values():
        with mutant.apply():
            pass
    assert [dict(vars(owner)) for owner in (stream_changes, roll, SegmentWriter, StreamSource)] == before
