"""Fixtures: an in-process cluster for each test, and a namespace on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from buckram.client.client import Client
from buckram.streams.namespace import Namespace
from buckram.testing import Cluster, cluster


@pytest.fixture
async def three_bookies() -> AsyncIterator[Cluster]:
    async with cluster(bookies=3) as running:
        yield running


@pytest.fixture
async def client(three_bookies: Cluster) -> AsyncIterator[Client]:
    async with three_bookies.client() as connected:
        yield connected


@pytest.fixture
async def ns(client: Client) -> Namespace:
    await client.namespaces.create("shop")
    return client.namespace("shop")
