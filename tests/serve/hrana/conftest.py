"""Fixtures: a client of an in-process cluster, and a server of the database shop/main on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.serve.hrana.kit import serving

from buckram.cluster import Client
from buckram.serve.hrana.server import DatabaseServer
from buckram.testing import Cluster


@pytest.fixture
async def client(three_bookies: Cluster) -> AsyncIterator[Client]:
    async with three_bookies.client() as connected:
        await connected.namespaces.create("shop")
        yield connected


@pytest.fixture
async def server(client: Client) -> AsyncIterator[DatabaseServer]:
    """It serves shop/main and leads it."""
    async with serving(client, "shop/main") as running:
        await (await running.databases.get("shop/main")).lead()
        yield running
