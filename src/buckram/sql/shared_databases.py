"""Databases that connections of one event loop share: a process has one replica of each, however many connect.

The first connection opens it, and it stays open for a while after the last one, because pools and programs close a
connection only to make another (`state/db/opening.py`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import weakref
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from buckram.client.ledger_client import client_config
from buckram.cluster import Client, connect
from buckram.core.backoff import LEADER_WAIT
from buckram.core.streams.names import StreamName, stream_name
from buckram.errors import StoreWentBack
from buckram.metadata.default import default_uri
from buckram.runtime.process.retry import Retries
from buckram.state.db.database import Database
from buckram.state.db.opening import Shelf
from buckram.state.machine.machine import process_name

LINGER_S = 10.0
"""Time for which a database without connections stays open, seconds."""
_MOST_OPEN = 1000


class _Undecided(Exception):
    """Internal reason to retry: the database has no leader yet."""


@dataclass(frozen=True, eq=False, slots=True)
class Shared:
    """A database that a connection uses."""

    database: Database
    announced: str
    """As whom others see this replica when it leads: no other replica, of this process or another one, is called so."""
    use: AsyncExitStack
    """Its end is that of the connection."""


class _Cluster:
    """One client, and the databases that it has open."""

    def __init__(self, uri: str) -> None:
        self.client: asyncio.Task[Client] = asyncio.ensure_future(_connected(uri))
        self.shelf = Shelf(self._open, idle_s=LINGER_S, most_open=_MOST_OPEN)
        self.announced = f"{process_name()}/{secrets.token_hex(4)}"
        self.may_create: dict[str, bool] = {}

    async def _open(self, name: str) -> Database:
        full = stream_name(name)
        ns = (await asyncio.shield(self.client)).namespace(full.namespace)
        return await ns.database(full.stream, announce=self.announced, create=self.may_create[name])

    @property
    def failed(self) -> bool:
        """Return whether connecting failed or was cancelled."""
        return self.client.done() and (self.client.cancelled() or self.client.exception() is not None)

    async def close(self) -> None:
        await self.shelf.close()
        if not self.failed:
            await (await self.client).close()


class Closable(Protocol):
    """A connection."""

    async def close(self) -> None: ...


class SharedDatabases:
    """Clients and databases shared by the connections of one event loop."""

    def __init__(self) -> None:
        self._clusters: dict[str, _Cluster] = {}
        self._left: list[_Cluster] = []
        """Clients from before a restore of the metadata; older connections may still use databases of theirs."""
        self.connections: weakref.WeakSet[Closable] = weakref.WeakSet()
        """Open connections; `close` ends them first, as their transactions would keep databases from closing."""

    async def acquire(self, uri: str | None, name: StreamName, *, create: bool, wait_s: float) -> Shared:
        """Return the database, open until its `use` ends. Waits up to `wait_s` for a leader, and returns without one
        then.
        """
        where = uri or default_uri(os.environ, Path.cwd())
        before = self._clusters.get(where)
        try:
            return await self._acquired(where, name, create=create, wait_s=wait_s)
        except StoreWentBack:
            # A client that was connected before a restore refuses the store for good: who connects again gets another.
            if before is None or self._clusters.get(where) is not before:
                raise
            self._left.append(self._clusters.pop(where))
        return await self._acquired(where, name, create=create, wait_s=wait_s)

    async def _acquired(self, where: str, name: StreamName, *, create: bool, wait_s: float) -> Shared:
        cluster = self._clusters.get(where)
        if cluster is None or cluster.failed:
            cluster = self._clusters[where] = _Cluster(where)
        cluster.may_create[str(name)] = create
        async with AsyncExitStack() as use:
            client = await asyncio.shield(cluster.client)
            database = await use.enter_async_context(cluster.shelf.use(str(name)))
            await _decided(client, database, announced=cluster.announced, wait_s=wait_s)
            return Shared(database, cluster.announced, use.pop_all())

    async def close(self) -> None:
        """Close everything, connections included. An error of one keeps none of the others open."""
        clusters, self._clusters, self._left = [*self._clusters.values(), *self._left], {}, []
        async with AsyncExitStack() as rest:
            for owner in (*reversed(clusters), *reversed(list(self.connections))):
                rest.push_async_callback(owner.close)


_sharings: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, SharedDatabases] = weakref.WeakKeyDictionary()


def sharing() -> SharedDatabases:
    """Return the Sharing of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _sharings:
        _sharings[loop] = SharedDatabases()
    return _sharings[loop]


async def _connected(uri: str) -> Client:
    return await connect(uri, config=client_config())


async def _decided(client: Client, database: Database, announced: str, wait_s: float) -> None:
    """Wait until some replica leads, so that the first statement need not wait; at most `wait_s`.

    Returns at once if no bookie runs, which the first statement reports.
    """
    retries = Retries(LEADER_WAIT, wait_s)
    while database.role != "leader" and await database.leader_address() in (None, announced):
        if client.services.bookies.nobody() is not None:
            return
        try:
            await retries.wait(_Undecided())
        except _Undecided:
            return
