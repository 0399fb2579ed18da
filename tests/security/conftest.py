"""Tenants on each kind of metadata store (`tests/support/gate_kit.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contracts.conftest import EtcdBackend, SqliteBackend, ZooKeeperBackend
from tests.support.gate_kit import Backend, World


@pytest.fixture(params=["sqlite", "zookeeper", "etcd"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    backend: Backend
    match request.param:
        case "zookeeper":
            backend = ZooKeeperBackend(request.getfixturevalue("zookeeper_server"))
        case "etcd":
            backend = EtcdBackend(request.getfixturevalue("etcd_server"))
        case _:
            backend = SqliteBackend(tmp_path)
    made = World(backend)
    await made.start()
    yield made
    await made.close()
