"""`ZooKeeperStore`: the MetadataStore on ZooKeeper, in Apache's layout.

Everything that is the same on every tree of keys is metadata/tree/store; here are the cluster's creation and identity.
The ledgers' tree is ledgers, whole clusters are cluster.
"""

from __future__ import annotations

import random

from buckram.errors import ConfigError
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.zookeeper.cluster import make_cluster
from buckram.metadata.zookeeper.keys import ZooKeeperKeys
from buckram.metadata.zookeeper.ledger_managers import OWN_KEYS, ApacheLayout, Manager, root_problem
from buckram.metadata.zookeeper.ledger_tree import ApacheTree
from buckram.metadata.zookeeper.session import ZkSession
from buckram.seams import Notify
from buckram.types import BookieId, BookieSet


class ZooKeeperStore(TreeStore):
    """The cluster at `root`, an absolute path. Owns the session: closing the store closes it.

    `manager`: the ledger manager that the URI asks for; None takes what LAYOUT says. A registration that is not ours is
    waited for as long as the session of its owner can last.
    """

    def __init__(
        self,
        session: ZkSession,
        root: str,
        rng: random.Random,
        *,
        manager: Manager | None = None,
        uri: str = "",
        takeover_wait_s: float | None = None,
    ) -> None:
        problem = root_problem(root)
        if problem is not None:
            raise ConfigError(f"ledgers root {problem}")
        uri = uri or f"zk{f'+{manager.name}' if manager else ''}://{session.hosts}{root}"
        keys = ZooKeeperKeys(session, shared=OWN_KEYS)
        self.session = session
        self.tree = ApacheTree(session, root, uri, manager, keys)
        self._wanted = manager
        super().__init__(
            keys,
            uri,
            rng,
            layout=self.tree.layout,
            ledgers=self.tree,
            takeover_wait_s=session.session_timeout_s if takeover_wait_s is None else takeover_wait_s,
        )

    @property
    def root(self) -> str:
        return self.layout.root

    @property
    def layout(self) -> ApacheLayout:
        return self.tree.layout

    def session_ticket(self) -> str:
        return self.session.ticket

    async def end_session(self, ticket: str) -> None:
        await self.session.end_other(ticket)

    async def initialise(self) -> str:
        """Make the cluster, or find the existing one; return its instance id, "" for one that has none."""
        made = await make_cluster(self.session, self.root, self._wanted, self._rng)
        if made.created:
            await self.begin_history()
        return await self.instance_id()

    async def take_over(self, instance_id: str) -> None:
        await make_cluster(self.session, self.root, self._wanted, self._rng, instance_id)

    async def instance_id(self) -> str:
        """Return the cluster's UUID; also checks that LAYOUT can be used, so that a process which could not go on does
        not start.
        """
        await self.tree.manager()
        return await self.tree.instance_id()

    async def _check_cluster(self) -> None:
        # A bookie that was away must not bring a removed cluster's root back, nor join the one that is made there next.
        await self.tree.instance_id()

    async def bookies(self, watch: Notify | None = None) -> BookieSet:
        found = await super().bookies(watch)
        if not found.writable and not found.readonly:
            await self.tree.manager()  # ClusterNotInitialised says more than "no bookies"
        return found

    async def known_bookies(self) -> list[BookieId]:
        found = await super().known_bookies()
        if not found:
            await self.tree.manager()
        return found
