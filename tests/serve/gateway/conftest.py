"""Fixtures: a client of an in-process cluster, and a gateway on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.serve.gateway.kit import Api, serving

from buckram.cluster import Client
from buckram.serve.gateway.server import Gateway
from buckram.testing import Cluster


@pytest.fixture
async def client(three_bookies: Cluster) -> AsyncIterator[Client]:
    async with three_bookies.client() as connected:
        await connected.namespaces.create("shop")
        yield connected


@pytest.fixture
async def gateway(client: Client) -> AsyncIterator[Gateway]:
    async with serving(client) as running:
        yield running


@pytest.fixture
async def api(gateway: Gateway) -> AsyncIterator[Api]:
    connected = await Api.to(gateway.url)
    yield connected
    await connected.raw.close()
