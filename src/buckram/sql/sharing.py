"""Databases that connections of one event loop share: a process has one replica of each, however many connect.

The first connection opens it, and it stays open for a while after the last one, because pools and programs close a
connection only to make another.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from buckram.client.client import Client, client_config, connect
from buckram.core.backoff import LEADER_WAIT
from buckram.core.streams.names import StreamName
from buckram.db.database import Database
from buckram.machine.machine import process_name
from buckram.metadata.uri import default_uri
from buckram.net.retry import Retries
from buckram.net.tasks import TaskScope

LINGER_S = 10.0
"""How long a database without connections stays open."""


class _Undecided(Exception):
    """Nobody leads the database yet."""


@dataclass(eq=False)
class Shared:
    """A database with its connections."""

    name: StreamName
    announced: str
    """As whom others see this replica when it leads: no other replica, of this process or another one, is called so."""
    database: asyncio.Task[Database]
    users: int = 0
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class _Cluster:
    client: asyncio.Task[Client]
    databases: dict[StreamName, Shared] = field(default_factory=dict)


class Sharing:
    """What the connections of one event loop share."""

    def __init__(self) -> None:
        self._clusters: dict[str, _Cluster] = {}
        self._scope = TaskScope("shared databases")

    async def acquire(self, uri: str | None, name: StreamName, *, create: bool, wait_s: float) -> Shared:
        """The database, open; somebody leads it, or did not within `wait_s`. `release` gives it back."""
        where = uri or default_uri(os.environ, Path.cwd())
        cluster = self._clusters.get(where)
        if cluster is None or _failed(cluster.client):
            cluster = self._clusters[where] = _Cluster(asyncio.ensure_future(_connected(where)))
        shared = cluster.databases.get(name)
        if shared is None or _failed(shared.database) or _stopped(shared.database):
            announced = f"{process_name()}/{secrets.token_hex(4)}"
            opening = asyncio.ensure_future(_opened(cluster.client, name, announced, create))
            shared = cluster.databases[name] = Shared(name, announced, opening)
        shared.users += 1
        if shared.timer is not None:
            shared.timer.cancel()
            shared.timer = None
        try:
            database = await asyncio.shield(shared.database)
            await _decided(database, announced=shared.announced, wait_s=wait_s)
        except BaseException:
            self.release(shared)
            raise
        return shared

    def release(self, shared: Shared) -> None:
        """A connection has ended."""
        shared.users -= 1
        if not shared.users:
            shared.timer = asyncio.get_running_loop().call_later(LINGER_S, self._close_later, shared)

    async def close(self) -> None:
        """Close everything, connections included."""
        clusters, self._clusters = list(self._clusters.values()), {}
        for cluster in clusters:
            for shared in cluster.databases.values():
                if shared.timer is not None:
                    shared.timer.cancel()
                await _close(shared)
            if not _failed(cluster.client):
                await (await cluster.client).close()
        await self._scope.close()

    def _close_later(self, shared: Shared) -> None:
        for cluster in self._clusters.values():
            if cluster.databases.get(shared.name) is shared:
                del cluster.databases[shared.name]
        self._scope.spawn(_close(shared), f"close {shared.name}")


_sharings: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Sharing] = weakref.WeakKeyDictionary()


def sharing() -> Sharing:
    """That of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _sharings:
        _sharings[loop] = Sharing()
    return _sharings[loop]


async def _connected(uri: str) -> Client:
    return await connect(uri, config=client_config())


async def _opened(client: asyncio.Task[Client], name: StreamName, announced: str, create: bool) -> Database:
    ns = (await asyncio.shield(client)).namespace(name.namespace)
    return await ns.database(name.stream, announce=announced, create=create)


async def _decided(database: Database, announced: str, wait_s: float) -> None:
    """Wait until this replica leads, or another one does, so that the first statement need not."""
    retries = Retries(LEADER_WAIT, wait_s)
    while database.role != "leader" and await database.leader_address() in (None, announced):
        try:
            await retries.wait(_Undecided())
        except _Undecided:
            return


async def _close(shared: Shared) -> None:
    if not _failed(shared.database):
        await (await shared.database).aclose()


def _failed(task: asyncio.Task[Database] | asyncio.Task[Client]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _stopped(task: asyncio.Task[Database]) -> bool:
    return task.done() and task.result().role == "stopped"


__all__ = ["LINGER_S", "Shared", "Sharing", "sharing"]
