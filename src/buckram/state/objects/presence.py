"""Presence: shows other processes that this one, which writes ledgers for objects, is alive.

It is an ephemeral key, so it goes with the process's metadata session. It only keeps sweepers from giving up ledgers
that are being written: what makes that safe are the fence and the index (`state/objects/garbage_collection.py`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from buckram.core.backoff import STREAM_HEAD, Delays
from buckram.errors import KeyExists, MetadataError, NoSuchKey
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.shared.metadata import StreamStore, retry_metadata

_PAGE = 1000


class Presence:
    """The presence of one process among the writers of a namespace's objects. `name` is unique to it."""

    def __init__(self, streams: StreamStore, uid: str, name: str) -> None:
        self.name = name
        self._keys, self._key = streams.keys, f"{streams.layout.object_writers(uid)}/{name}"
        self._scope = TaskScope(f"presence {name}")
        self._showing = asyncio.Lock()
        self._shown = False
        self._stale = asyncio.Event()

    async def show(self) -> None:
        """Create the key, so that others see this process. Raises MetadataUnavailable."""
        if self._shown:
            return
        async with self._showing:
            if not self._shown:
                await retry_metadata(self._create)
                self._shown = True
                self._stale.set()
                self._scope.keep(self._keep, "keep", wake=self._stale.set)

    async def close(self) -> None:
        """Delete the key. While the store is away, the end of the session deletes it."""
        await self._scope.close()
        if self._shown:
            self._shown = False
            with suppress(MetadataError):
                await self._keys.delete(self._key, (await self._keys.get(self._key)).version)

    async def _create(self) -> None:
        with suppress(KeyExists):
            await self._keys.create(self._key, b"", ephemeral=True)

    async def _keep(self) -> None:
        """Create the key again when it has gone with a session that was lost."""
        delays = Delays(STREAM_HEAD)
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                await self._keys.get(self._key, self._stale.set)
                delays.reset()
                continue
            except NoSuchKey:
                with suppress(MetadataError):
                    await self._create()
            except MetadataError:
                pass
            self._stale.set()
            await asyncio.sleep(delays.take())


async def present_writers(streams: StreamStore, uid: str) -> dict[str, None]:
    """Return the names of all present writers, also if a server of the store lags. Raises MetadataUnavailable."""
    found: dict[str, None] = {}
    await retry_metadata(streams.keys.sync)
    parent = streams.layout.object_writers(uid)
    after = ""

    async def page() -> list[str]:
        return await streams.keys.children(parent, after=after, limit=_PAGE)

    while names := await retry_metadata(page):
        found |= dict.fromkeys(names)
        after = names[-1]
    return found
