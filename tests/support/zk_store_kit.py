"""A simulated ZooKeeper with stores and raw nodes on it, and counts of the requests that a session sent."""

from __future__ import annotations

import random
from typing import Any

from buckram.core.ledgers.metadata import created
from buckram.metadata.zookeeper.ledger_managers import Manager
from buckram.metadata.zookeeper.session import OperationCount
from buckram.metadata.zookeeper.store import ZooKeeperStore
from buckram.types import LedgerMetadata
from simulator.engine.zookeeper import SimZkSession, SimZooKeeper


class Zk:
    """One server; `store` opens a session with a store of its own, `session` a bare one."""

    def __init__(self, root: str = "/ledgers") -> None:
        self.server = SimZooKeeper(random.Random(4))
        self.server.spurious_watches = self.server.late_watch_s = 0.0
        self.root = root

    @property
    def tree(self) -> Any:
        return self.server.tree

    def session(self, name: str = "client") -> SimZkSession:
        return self.server.open(name)

    def store(self, name: str = "client", manager: Manager | None = None, seed: int = 1) -> ZooKeeperStore:
        rng = random.Random(seed)
        return ZooKeeperStore(self.session(name), self.root, rng, manager=manager, takeover_wait_s=0.1)

    async def ready(self, manager: Manager | None = None) -> ZooKeeperStore:
        store = self.store(manager=manager)
        await store.initialise()
        return store

    def put(self, path: str, value: bytes = b"") -> None:
        """Create a node and its parents, as a foreign program would."""
        parts = path.split("/")[1:]
        for depth in range(1, len(parts) + 1):
            above = "/" + "/".join(parts[:depth])
            if self.tree.peek(above) is None:
                self.tree.create(above, value if above == path else b"", 0)

    def nodes(self, below: str = "") -> dict[str, bytes]:
        """All nodes below a path."""
        every = self.tree.snapshot()
        return {path: value for path, value in every.items() if path.startswith(f"{below}/") and path != "/"}


class Counted:
    """Counts the requests of a session since this object was made."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self._operations = store.session.operations
        self._before = self._now()

    def _now(self) -> tuple[int, int, int]:
        count: OperationCount = self._operations
        return count.reads, count.writes, count.syncs

    @property
    def reads(self) -> int:
        return self._now()[0] - self._before[0]

    @property
    def writes(self) -> int:
        return self._now()[1] - self._before[1]


def ledger(token: int = 7) -> LedgerMetadata:
    return created(3, 3, 2, ["a:1", "b:1", "c:1"], creator_token=token)
