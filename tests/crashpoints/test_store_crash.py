"""A store crashes before every disk operation of random workloads; opened again, it must have all acknowledged data."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.crashpoints.workload import Life
from tests.support.soak import drawn, soak

CUTS = soak(60_000, 1500)
STEPS = 400


async def live(seed: int, pool: ThreadPoolExecutor, sync: bool = True) -> Life:
    life = Life(seed, 1, pool, sync=sync)
    await life.run(STEPS)
    return life


@pytest.mark.slow
def test_no_acknowledged_data_is_lost_by_any_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    first = drawn("crashes of a store").randrange(10**6)
    cuts, lives, operations = 0, 0, dict[str, int]()
    with ThreadPoolExecutor(1) as pool:
        while cuts < CUTS or lives < 2:
            seed = first + lives
            print(f"seed {seed}", flush=True)
            # In every second workload log files grow while they are written.
            monkeypatch.setattr("buckram.bookie.storage.store_state.FIRST_BYTES", 4096 if lives % 2 else 1 << 24)
            life = asyncio.run(live(seed, pool))
            lives += 1
            cuts += life.cuts
            for kind, count in life.operations.items():
                operations[kind] = operations.get(kind, 0) + count
    print(f"{cuts} cuts in {lives} lives: {operations}")
    assert {"create", "extend", "rename", "remove", "sync_names", "write", "sync"} <= operations.keys()


def test_disk_that_does_not_sync_fails_the_check() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(AssertionError, match="cut before"):
        asyncio.run(live(1, pool, sync=False))
