"""A process of a replication that is killed between any two of its changes of metadata, in this process.

From its death on nothing that it does reaches a store, and what it waits for never comes. Its sessions end, as those of
a process do that is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from tests.replication.kit import Pair

from buckram.client.cluster.store_history import unguarded
from buckram.cluster import Client, connect
from buckram.metadata.tree.memory import MemoryKeys
from buckram.replication.sides import side_of

Work = Callable[[Pair], Awaitable[object]]
_NEVER = 1 << 30


class Life:
    """It ends at change number `left` of its two stores; `after`: the change is made, and nobody hears of it."""

    def __init__(self, left: int = _NEVER, *, after: bool = False) -> None:
        self.changes, self._left, self._after = 0, left, after
        self._dead, self._buried = asyncio.Event(), False
        self._clients: list[Client] = []
        self._keys: list[MemoryKeys] = []
        self._hanging: list[asyncio.Future[None]] = []

    async def run(self, both: Pair, work: Work) -> bool:
        """Work on both clusters; returns whether it was killed. Raises what the work raises."""
        sides = [await side_of(await self._connect(uri)) for uri in (both.of_a.uri, both.of_b.uri)]
        for keys in self._keys:
            self._watch(keys)
        task = asyncio.ensure_future(work(replace(both, a=sides[0], b=sides[1])))
        dead = asyncio.ensure_future(self._dead.wait())
        await asyncio.wait((task, dead), return_when=asyncio.FIRST_COMPLETED)
        dead.cancel()
        if not self._dead.is_set():
            for client in self._clients:
                await client.close()
            await task
            return False
        for client, keys in zip(self._clients, self._keys, strict=True):
            keys.tree.expire(keys.session)
            await client.services.pool.close()
        self._task = task
        return True

    async def bury(self) -> None:
        """End the tasks that are left of it."""
        if not self._dead.is_set():
            return
        self._buried = True
        for future in self._hanging:
            future.cancel()
        self._task.cancel()
        await asyncio.wait((self._task,), timeout=10)
        if self._task.done() and not self._task.cancelled():
            self._task.exception()  # Nobody hears of it.
        for client in self._clients:
            with suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(client.close(), 10)

    async def _connect(self, uri: str) -> Client:
        client = await connect(uri)
        keys = unguarded(client.services.store).keys
        assert isinstance(keys, MemoryKeys)
        self._clients.append(client)
        self._keys.append(keys)
        return client

    def _watch(self, keys: Any) -> None:
        for name in ("_apply", "multi"):
            setattr(keys, name, partial(self._change, getattr(keys, name)))
        for name in ("get", "children", "children_with_values", "sync"):
            setattr(keys, name, partial(self._look, getattr(keys, name)))

    async def _change(self, change: Callable[..., Awaitable[Any]], *given: Any) -> Any:
        await self._end_if_dead()
        self.changes += 1
        if self.changes == self._left:
            if self._after:
                await change(*given)
            self._dead.set()
        await self._end_if_dead()
        return await change(*given)

    async def _look(self, look: Callable[..., Awaitable[Any]], *given: Any, **more: Any) -> Any:
        await self._end_if_dead()
        return await look(*given, **more)

    async def _end_if_dead(self) -> None:
        if self._buried:
            raise asyncio.CancelledError
        if self._dead.is_set():
            self._hanging.append(asyncio.get_running_loop().create_future())
            await self._hanging[-1]
