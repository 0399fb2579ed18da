"""SQLite's own code under random interleavings of several stores: no watch is missed, ended sessions stay ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.interleaving_kit import interleave
from tests.support.soak import some_of

FOUND = 272
"""A session that began after a lost one was taken for that one."""
SEEDS = sorted({*some_of(range(400), 6), FOUND})


@pytest.mark.parametrize("seed", SEEDS)
async def test_stores_on_one_file_agree_with_the_model_and_miss_no_change(tmp_path: Path, seed: int) -> None:
    turns = await interleave(seed, tmp_path / "metadata.db")
    assert turns.faults == [], f"seed {seed}"


async def test_a_seed_reaches_what_it_is_for_and_gives_the_same_again(tmp_path: Path) -> None:
    played = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        turns = await interleave(1, tmp_path / name / "metadata.db")
        played.append((turns.history, turns.commits, turns.kills, turns.losses, turns.closes))
    assert played[0] == played[1]
    assert all(played[0][1:])
