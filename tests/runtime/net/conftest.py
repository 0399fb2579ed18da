"""A peer on loopback and pools that lead to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.net_kit import Peer
from tests.support.pool_kit import Make

from buckram.config import NetConfig
from buckram.runtime.net.pool import BookiePool
from buckram.runtime.production import production_runtime
from buckram.seams import Runtime


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = await Peer().start()
    yield peer
    await peer.stop()


@pytest.fixture
async def make(peer: Peer) -> AsyncIterator[Make]:
    pools: list[BookiePool] = []

    def build(config: NetConfig | None = None, wire_protocol: int = 2, runtime: Runtime | None = None) -> BookiePool:
        addresses = {"b1": peer.address}
        pool = BookiePool(
            runtime or production_runtime(1), config or NetConfig(), addresses.get, wire_protocol=wire_protocol
        )
        pools.append(pool)
        return pool

    yield build
    for pool in pools:
        await pool.close()
