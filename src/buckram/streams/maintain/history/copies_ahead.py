"""Copies of segments, one after another; each is begun once the segment before it has been read.

So the machine does not rest while the last files of a segment are made, checked and listed, and memory holds the end of
one segment and the beginning of the next. Not here: one copy (`maintain/segment_copy.py`), the use of it
(`maintain/offload.py`, `maintain/export.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from buckram.client.ledger_client import LedgerClient
from buckram.errors import BuckramError
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.maintain.compaction import ProgressCallback
from buckram.streams.maintain.history.segment_copy import PARTS_AT_ONCE, SegmentCopy
from buckram.streams.shared.ledgers import drop_files
from buckram.streams.shared.metadata import StreamStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """The copy of what `item` says, as it is being made."""

    item: T
    copy: SegmentCopy
    outcome: asyncio.Task[str | BuckramError]

    async def digest(self) -> str:
        """Wait for its end, and return the digest of its manifest. Raises what `SegmentCopy.make` raises."""
        found = await self.outcome
        if isinstance(found, BuckramError):
            raise found
        return found


class CopiesAhead(Generic[T]):
    """Copies what the items say, in their order. Use `async with`: an error there discards the copy that is ahead."""

    def __init__(
        self,
        client: LedgerClient,
        streams: StreamStore,
        items: Iterable[T],
        begin: Callable[[T], Awaitable[SegmentCopy]],
        *,
        pace: Pace | None,
        progress: ProgressCallback,
    ) -> None:
        """`begin` gives the copy of an item, with its intent; it is called once the item before has been read."""
        self._client, self._streams = client, streams
        self._items, self._begin = iter(items), begin
        self._pace, self._progress = pace or Pace(None), progress
        self._room = asyncio.Semaphore(PARTS_AT_ONCE)
        self._scope = TaskScope("copies of segments")
        self._ahead: Attempt[T] | None = None

    async def next(self) -> Attempt[T] | None:
        """Return the attempt at the next item, None after the last one. Raises what `begin` raises."""
        if self._ahead is None:
            self._ahead = await self._start()
        if self._ahead is None:
            return None
        await self._ahead.copy.was_read.wait()
        following = await self._start()
        current, self._ahead = self._ahead, following
        return current

    async def __aenter__(self) -> CopiesAhead[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._scope.close()
        if self._ahead is None or not isinstance(error, BuckramError):
            return  # After a crash the files of the one that is ahead have an intent.
        copy = self._ahead.copy
        if not await copy.discard(self._client, self._streams):
            # The process that took its intent has looked for files already, maybe before the last were there.
            with suppress(BuckramError):
                await drop_files(self._client, copy.uid, copy.directory, copy.copy)

    async def _start(self) -> Attempt[T] | None:
        for item in self._items:
            copy = await self._begin(item)
            copy.room = self._room
            return Attempt(item, copy, self._scope.spawn(self._outcome(copy), f"copy {copy.copy}"))
        return None

    async def _outcome(self, copy: SegmentCopy) -> str | BuckramError:
        """Return an error as a value: it is raised where it is this copy's turn."""
        try:
            return await copy.make_or_discard(self._client, self._streams, self._pace, self._progress)
        except BuckramError as error:
            return error
        finally:
            copy.was_read.set()


__all__ = ["Attempt", "CopiesAhead"]
