"""The metadata store of a life: Buckram's own layout in memory, or Apache's on a simulated ZooKeeper."""

from __future__ import annotations

import random
from typing import Protocol

from buckram.metadata.tree.layout import ClusterLayout, Layout
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.zookeeper.ledger_managers import MANAGERS, ApacheLayout, own_root
from buckram.metadata.zookeeper.store import ZooKeeperStore
from simulator.engine.loop import Process
from simulator.engine.metadata import MetadataFaults, MetadataServer, SimKeys
from simulator.engine.network import Fabric
from simulator.engine.zk_connection import FabricConnection
from simulator.engine.zookeeper import SimZkSession, SimZooKeeper


class Session(Protocol):
    """A session with the metadata store, as faults see it."""

    def expire(self) -> None:
        """End the session on the store; the process learns of it later."""
        ...


class Stores(Protocol):
    """The metadata store of one life. `ledger_keys` is a part of the keys of ledgers, and of no others."""

    @property
    def server(self) -> MetadataFaults: ...

    layout: ClusterLayout
    ledger_keys: str

    def open(self, process: Process, rng: random.Random) -> tuple[TreeStore, Session]: ...


class MemoryStores:
    """Buckram's own layout in memory."""

    ledger_keys = "/all/"

    def __init__(self, fabric: Fabric, rng: random.Random, uri: str = "memory:sim") -> None:
        self.server, self._uri = MetadataServer(fabric, rng), uri
        self.layout: ClusterLayout = Layout()

    def open(self, process: Process, rng: random.Random) -> tuple[TreeStore, Session]:
        keys = SimKeys(self.server, process)
        return TreeStore(keys, self._uri, rng), keys


class ZooKeeperStores:
    """Apache's layout on a simulated ZooKeeper."""

    ledger_keys = "/L"

    def __init__(self, manager: str, fabric: Fabric, rng: random.Random, lag_s: float) -> None:
        self._fabric, self._manager = fabric, MANAGERS[manager]
        loop = fabric.loop
        self.server = SimZooKeeper(rng, lambda: int(loop.time() * 1000))
        if lag_s:
            self.server.lag(lag_s, lambda delay_s, run: loop.call_later(delay_s, run, context=loop.world.context))
        self.layout: ClusterLayout = ApacheLayout(own=own_root(ApacheLayout().root), manager=self._manager)

    def open(self, process: Process, rng: random.Random) -> tuple[TreeStore, Session]:
        session = SimZkSession(
            self.server, FabricConnection(self._fabric, process, self.server.extra_delay_s, self.server.host)
        )
        return ZooKeeperStore(session, self.layout.root, rng, manager=self._manager), session


def stores_of(kind: str, fabric: Fabric, rng: random.Random, lag_s: float = 0.0) -> Stores:
    """Return the stores of a kind: "memory", or "zk+" and the name of one of Apache's ledger managers.

    `lag_s` is how far ZooKeeper's follower lags, 0.0 for none.
    """
    if kind == "memory":
        return MemoryStores(fabric, rng)
    return ZooKeeperStores(kind.removeprefix("zk+"), fabric, rng, lag_s)
