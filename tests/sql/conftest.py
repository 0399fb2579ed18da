"""Fixtures: an in-process cluster for each module of tests, and a new database on it for each test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

from buckram.cluster import Client
from buckram.state.db.database import Database
from buckram.testing import cluster

_numbers = itertools.count(1)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with cluster(bookies=3) as running, running.client() as connected:
        await connected.namespaces.create("shop")
        yield connected


@pytest.fixture
async def database(client: Client) -> AsyncIterator[Database]:
    async with client.namespace("shop").database(f"db{next(_numbers)}") as opened:
        await opened.lead()
        yield opened
