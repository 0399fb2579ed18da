"""Every key store runs the same suite: a backend opens sessions on one tree and can end one from outside."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest
from kazoo.client import KazooClient
from tests.support.metadata_service_kit import ServedMetadata, service_store

from buckram.launch.etcd_server import EtcdServer
from buckram.launch.zookeeper_server import ZooKeeperServer
from buckram.metadata.etcd.keys import EtcdKeys
from buckram.metadata.etcd.store import EtcdStore
from buckram.metadata.service.keys import ServiceKeys
from buckram.metadata.sqlite.keys import SqliteKeys
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.zookeeper.kazoo_session import KazooSession
from buckram.metadata.zookeeper.keys import ZooKeeperKeys
from buckram.metadata.zookeeper.store import ZooKeeperStore
from buckram.seams import KeyStore
from simulator.engine.zookeeper import SimZkSession, SimZooKeeper

DEADLINE_S = 20.0


class Backend(Protocol):
    name: str

    async def open(self) -> KeyStore: ...
    def store(self, keys: KeyStore, uri: str, rng: random.Random, takeover_wait_s: float) -> TreeStore: ...
    async def lose_session(self, keys: KeyStore) -> None:
        """End the session as a failure would, its process staying alive."""
        ...


class Embedded:
    """Stores whose ledgers are in one folder."""

    def store(self, keys: KeyStore, uri: str, rng: random.Random, takeover_wait_s: float) -> TreeStore:
        return TreeStore(keys, uri, rng, takeover_wait_s=takeover_wait_s)


class MemoryBackend(Embedded):
    name = "memory"

    def __init__(self) -> None:
        self.tree = MemoryTree()

    async def open(self) -> KeyStore:
        return MemoryKeys(self.tree)

    async def lose_session(self, keys: KeyStore) -> None:
        assert isinstance(keys, MemoryKeys)
        self.tree.expire(keys.session)


class SqliteBackend(Embedded):
    name = "sqlite"

    def __init__(self, directory: Path) -> None:
        self.path = directory / "metadata.db"

    async def open(self) -> KeyStore:
        return SqliteKeys(self.path)

    async def lose_session(self, keys: KeyStore) -> None:
        """Remove the files of all sessions, so that other stores take them for dead."""
        for file in self.path.with_name("metadata.db.sessions").iterdir():
            file.unlink()


class Zk:
    """ZooKeeper, with ledgers where Apache has them."""

    def store(self, keys: KeyStore, uri: str, rng: random.Random, takeover_wait_s: float) -> TreeStore:
        assert isinstance(keys, ZooKeeperKeys)
        return ZooKeeperStore(keys.session, "/ledgers", rng, uri=uri, takeover_wait_s=takeover_wait_s)


class SimulatedZkBackend(Zk):
    name = "simulated"

    def __init__(self) -> None:
        self.server = SimZooKeeper(random.Random(1))
        self.server.spurious_watches = 0.0  # the suite counts how often watches fire

    async def open(self) -> KeyStore:
        return ZooKeeperKeys(self.server.open())

    async def lose_session(self, keys: KeyStore) -> None:
        assert isinstance(keys, ZooKeeperKeys)
        assert isinstance(keys.session, SimZkSession)
        keys.session.expire()


class ZooKeeperBackend(Zk):
    """A folder of its own on a real server."""

    name = "zookeeper"

    def __init__(self, server: ZooKeeperServer) -> None:
        self.hosts = f"{server.address}/contract-{uuid.uuid4().hex}"
        self.made = False

    async def open(self) -> KeyStore:
        if not self.made:
            self.made = True
            hosts, _, folder = self.hosts.partition("/")
            above = KazooSession(hosts)
            await above.create(f"/{folder}")
            await above.close()
        return ZooKeeperKeys(KazooSession(self.hosts))

    async def lose_session(self, keys: KeyStore) -> None:
        """Another client takes the session over and ends it."""
        assert isinstance(keys, ZooKeeperKeys)
        assert isinstance(keys.session, KazooSession)
        await asyncio.to_thread(end_session, self.hosts, keys.session._link.client.client_id)


def end_session(hosts: str, client_id: tuple[int, bytes]) -> None:
    thief = KazooClient(hosts, client_id=client_id)
    thief.start()
    thief.stop()
    thief.close()


class EtcdBackend:
    """A root of its own on a real server."""

    name = "etcd"

    def __init__(self, server: EtcdServer) -> None:
        self.server, self.root = server, f"/contract-{uuid.uuid4().hex}"

    def store(self, keys: KeyStore, uri: str, rng: random.Random, takeover_wait_s: float) -> TreeStore:
        assert isinstance(keys, EtcdKeys)
        return EtcdStore(keys, uri, rng, takeover_wait_s=takeover_wait_s)

    async def open(self) -> KeyStore:
        return EtcdKeys((self.server.address,), self.root, session_ttl_s=2)

    async def lose_session(self, keys: KeyStore) -> None:
        """Another client ends the lease."""
        assert isinstance(keys, EtcdKeys)
        other = EtcdKeys((self.server.address,), self.root)
        await other.session.revoke(keys.session.lease)
        await other.close()


class ServiceBackend:
    """A bookie that serves another backend."""

    name = "service"

    def __init__(self, behind: Backend) -> None:
        self.behind = behind
        self.served: ServedMetadata | None = None
        self._sessions = 0

    async def _open_behind(self) -> TreeStore:
        self._sessions += 1
        keys = await self.behind.open()
        store = self.behind.store(keys, f"{self.behind.name}:test", random.Random(self._sessions), 10.0)
        await store.keys.prepare()
        return store

    def store(self, keys: KeyStore, uri: str, rng: random.Random, takeover_wait_s: float) -> TreeStore:
        return service_store(keys, uri, rng, takeover_wait_s)

    async def open(self) -> KeyStore:
        if self.served is None:
            self.served = ServedMetadata(self._open_behind)
            await self.served.start()
        return await self.served.open()

    async def lose_session(self, keys: KeyStore) -> None:
        """Cut its connection."""
        assert isinstance(keys, ServiceKeys)
        connection = keys._connection
        assert connection is not None
        connection._transport.abort()  # type: ignore[union-attr]

    async def close(self) -> None:
        if self.served is not None:
            await self.served.close()


class Cluster:
    """Sessions on one tree, all closed at the end of the test."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.opened: list[KeyStore] = []

    async def keys(self) -> KeyStore:
        keys = await self.backend.open()
        self.opened.append(keys)
        await keys.prepare()
        return keys

    async def store(self, seed: int = 1, *, takeover_wait_s: float = 10.0) -> TreeStore:
        store = await self.bare_store(seed, takeover_wait_s=takeover_wait_s)
        await store.initialise()
        return store

    async def bare_store(self, seed: int = 1, *, uri: str = "", takeover_wait_s: float = 10.0) -> TreeStore:
        """A store whose cluster is not initialised yet."""
        uri = uri or f"{self.backend.name}:test"
        return self.backend.store(await self.keys(), uri, random.Random(seed), takeover_wait_s)

    async def direct(self) -> TreeStore:
        """The store itself, also where a bookie stands between it and clients, who do not know where ledgers are."""
        if not isinstance(self.backend, ServiceBackend):
            return await self.store()
        store = await self.backend._open_behind()
        self.opened.append(store.keys)
        return store

    async def folder_store(self) -> TreeStore:
        """Buckram's own layout, which the embedded stores have, on any keys."""
        store = TreeStore(await self.keys(), "folder:test", random.Random(1))
        await store.initialise()
        return store

    async def close(self) -> None:
        for keys in self.opened:
            await keys.close()
        if isinstance(self.backend, ServiceBackend):
            await self.backend.close()


@pytest.fixture(
    params=["memory", "sqlite", "simulated", "zookeeper", "etcd", "service", "served-zookeeper", "served-etcd"]
)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    backend: Backend
    match request.param:
        case "memory":
            backend = MemoryBackend()
        case "sqlite":
            backend = SqliteBackend(tmp_path)
        case "simulated":
            backend = SimulatedZkBackend()
        case "etcd":
            backend = EtcdBackend(request.getfixturevalue("etcd_server"))
        case "service":
            backend = ServiceBackend(SqliteBackend(tmp_path))
        case "served-zookeeper":
            backend = ServiceBackend(ZooKeeperBackend(request.getfixturevalue("zookeeper_server")))
        case "served-etcd":
            backend = ServiceBackend(EtcdBackend(request.getfixturevalue("etcd_server")))
        case _:
            backend = ZooKeeperBackend(request.getfixturevalue("zookeeper_server"))
    opened = Cluster(backend)
    yield opened
    await opened.close()


class Watch:
    """A Notify that counts its calls; it is equal to itself only."""

    def __init__(self) -> None:
        self.times = 0
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self.times += 1
        self._event.set()

    async def fired(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self._event.wait()
