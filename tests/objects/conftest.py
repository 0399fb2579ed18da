"""Fixtures: an in-process cluster for each test, and a namespace on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from buckram.client.client import Client
from buckram.streams.namespace import Namespace
from buckram.testing import Cluster, cluster


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles that all write take the index from each other after a tenth of the time."""
    monkeypatch.setattr("buckram.objects.index_client.TURN_S", 0.1)


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
