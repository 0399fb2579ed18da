"""The store is cut at every disk operation of random workloads, reopened, and must know all that was acknowledged."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from workload import Life

SOAK = os.environ.get("BUCKRAM_SOAK") == "1"
BUDGET_S = 600.0 if SOAK else 20.0


@pytest.mark.slow
def test_nothing_acknowledged_is_missing_at_any_cut() -> None:
    first = random.SystemRandom().randrange(10**6)
    deadline = time.monotonic() + BUDGET_S
    cuts, lives, operations = 0, 0, dict[str, int]()
    with ThreadPoolExecutor(1) as pool:
        while time.monotonic() < deadline:
            seed = first + lives
            print(f"seed {seed}", flush=True)
            async def live(seed: int = seed) -> Life:
                life = Life(seed, 1, pool)
                await life.run(400)
                return life

            life = asyncio.run(live())
            lives += 1
            cuts += life.cuts
            for kind, count in life.operations.items():
                operations[kind] = operations.get(kind, 0) + count
    print(f"{cuts} cuts in {lives} lives: {operations}")
    assert cuts > 500
    assert {"create", "rename", "remove", "sync_names", "write", "sync"} <= operations.keys()
