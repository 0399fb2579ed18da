"""The store is cut at every disk operation of random workloads, reopened, and must know all that was acknowledged."""

from __future__ import annotations

import asyncio
import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.crashpoints.workload import Life

SOAK = os.environ.get("BUCKRAM_SOAK") == "1"
CUTS = 60_000 if SOAK else 4000
STEPS = 400


async def live(seed: int, pool: ThreadPoolExecutor, sync: bool = True) -> Life:
    life = Life(seed, 1, pool, sync=sync)
    await life.run(STEPS)
    return life


@pytest.mark.slow
def test_nothing_acknowledged_is_missing_at_any_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    first = random.SystemRandom().randrange(10**6)
    cuts, lives, operations = 0, 0, dict[str, int]()
    with ThreadPoolExecutor(1) as pool:
        while cuts < CUTS:
            seed = first + lives
            print(f"seed {seed}", flush=True)
            # Every second life has files that grow while they are written.
            monkeypatch.setattr("buckram.bookie.storage.store_state.FIRST_BYTES", 4096 if lives % 2 else 1 << 24)
            life = asyncio.run(live(seed, pool))
            lives += 1
            cuts += life.cuts
            for kind, count in life.operations.items():
                operations[kind] = operations.get(kind, 0) + count
    print(f"{cuts} cuts in {lives} lives: {operations}")
    assert {"create", "extend", "rename", "remove", "sync_names", "write", "sync"} <= operations.keys()


def test_a_disk_whose_sync_does_nothing_is_noticed() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(AssertionError, match="cut before"):
        asyncio.run(live(1, pool, sync=False))
