"""HeadFollower: keeps the newest head of one stream, by a metadata watch.

Older versions never replace newer ones, and while the metadata store is unavailable the last head stays.
"""

from __future__ import annotations

import asyncio

from buckram.core.backoff import STORE_WATCH, Delays
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.names import StreamName
from buckram.errors import MetadataError, NoSuchStream
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.shared.metadata import HeadAt, StreamStore


class HeadFollower:
    """The newest known head of a stream. It watches only after `follow`; `scope` owns the task."""

    def __init__(self, streams: StreamStore, name: StreamName, current: HeadAt, scope: TaskScope) -> None:
        self._streams, self._name, self._current, self._scope = streams, name, current, scope
        self._stale, self._changed = asyncio.Event(), asyncio.Event()
        self._following = False
        self.gone = False
        """True if the stream was deleted; another one may exist under its name."""

    @property
    def head(self) -> Head:
        """Newest head seen so far."""
        return self._current.head

    def follow(self) -> None:
        """Start to watch, unless it does: the head is read now and after every change."""
        if not self._following:
            self._following = True
            self._stale.set()
            self._scope.keep(self._run, "follow the head", wake=self._stale.set)

    def changes(self) -> asyncio.Event:
        """Return an event that the next change or deletion after this call sets."""
        if self._changed.is_set():
            self._changed = asyncio.Event()
        return self._changed

    async def refresh(self) -> Head:
        """Read the head now and return it. Raises NoSuchStream or MetadataUnavailable."""
        try:
            self._install(await self._streams.read(self._name))
        except NoSuchStream:
            self._mark_gone()
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
                self._mark_gone()
            except MetadataError:
                self._stale.set()
                await asyncio.sleep(delays.take())

    def _install(self, seen: HeadAt) -> None:
        if seen.head.uid != self._current.head.uid:
            self._mark_gone()
        elif seen.version > self._current.version:
            self._current = seen
            self._changed.set()

    def stop(self) -> None:
        """Wake all tasks that wait for a change. Closing the scope ends the watch."""
        self._changed.set()

    def _mark_gone(self) -> None:
        self.gone = True
        self._changed.set()
