"""Follows one stream's head through a watch. Newer versions only; the last one stays while the store is away."""

from __future__ import annotations

import asyncio

from buckram.core.backoff import STORE_WATCH, Delays
from buckram.core.streams.head import Head
from buckram.core.streams.names import StreamName
from buckram.errors import MetadataError, NoSuchStream
from buckram.net.tasks import TaskScope
from buckram.streams.shared.metadata import HeadAt, StreamStore


class HeadFollower:
    """The newest head known. Watches only after `follow`; `scope` owns its task."""

    def __init__(self, streams: StreamStore, name: StreamName, current: HeadAt, scope: TaskScope) -> None:
        self._streams, self._name, self._current, self._scope = streams, name, current, scope
        self._stale, self._changed = asyncio.Event(), asyncio.Event()
        self._following = False
        self.gone = False
        """The stream was deleted (it may exist again under the same name)."""

    @property
    def head(self) -> Head:
        return self._current.head

    def follow(self) -> None:
        """Begin to watch (once): the head is read again now and after every change."""
        if not self._following:
            self._following = True
            self._stale.set()
            self._scope.spawn(self._run(), "follow the head")

    def changes(self) -> asyncio.Event:
        """An event that is set by the next change (or deletion) after this call."""
        if self._changed.is_set():
            self._changed = asyncio.Event()
        return self._changed

    async def refresh(self) -> Head:
        """Read it now. NoSuchStream, MetadataUnavailable."""
        try:
            self._install(await self._streams.read(self._name))
        except NoSuchStream:
            self._go()
        if self.gone or self.head.deleting:
            raise NoSuchStream(str(self._name), "was deleted while it was read")
        return self.head

    async def _run(self) -> None:
        delays = Delays(STORE_WATCH)
        while not self.gone:
            await self._stale.wait()
            self._stale.clear()
            try:
                self._install(await self._streams.read(self._name, self._stale.set, within_s=0.0))
                delays.reset()
            except NoSuchStream:
                self._go()
            except MetadataError:
                self._stale.set()
                await asyncio.sleep(delays.take())

    def _install(self, seen: HeadAt) -> None:
        if seen.head.uid != self._current.head.uid:
            self._go()
        elif seen.version > self._current.version:
            self._current = seen
            self._changed.set()

    def stop(self) -> None:
        """Wakes who waits for a change; closing the scope ends the watching."""
        self._changed.set()

    def _go(self) -> None:
        self.gone = True
        self._changed.set()
