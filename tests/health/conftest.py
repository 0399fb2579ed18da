"""A cluster with its doors, for all tests of a file; every test sets right again what it has broken."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from tests.health.kit import Doors, doors

from buckram.cluster import Client
from buckram.health import stream_facts as streams
from buckram.metadata.records.auditor_election import Election
from buckram.testing import Cluster, cluster


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look sees the streams as they are now."""
    monkeypatch.setattr(streams, "FRESH_S", 0.0)


@dataclass
class Site:
    """A cluster in this process, a client of it, and its doors."""

    cluster: Cluster
    client: Client
    doors: Doors


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    async with cluster(bookies=3, metadata="sqlite") as running, running.client() as client:
        store = client.services.store
        await Election(store.keys, store.root, "the auditor of this test").stand()
        async with doors(running.uri, client) as opened:
            yield Site(running, client, opened)
