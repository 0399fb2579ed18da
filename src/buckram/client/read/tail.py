"""Tailing: entries as they become readable, until the ledger is closed and all of it was delivered.

Waits with long polls at the bookies (polls.py) and a metadata watch side by side. The end is only ever the last entry
of closed metadata, never a LAC that stands still (S19, L6). While the metadata store is away it goes on with the
ensemble it knows. Reading itself is reader.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Protocol

from buckram.client.read.polls import LacPolls
from buckram.client.read.replicas import LedgerReads, check_running
from buckram.client.shared.handles import NotCopied
from buckram.client.shared.ledger_metadata import LedgerFollower
from buckram.client.shared.services import Services
from buckram.core.backoff import TAIL
from buckram.core.ledgers.answers import Positive
from buckram.core.ledgers.reading import readable_until
from buckram.core.ledgers.recovery import quorum_of
from buckram.errors import (
    NoSuchEntry,
    NoSuchLedger,
    ReadFailed,
)
from buckram.runtime.process.tasks import TaskScope
from buckram.types import Entry, EntryId, LedgerMetadata

_UNSEEN_PAUSE_S, _UNSEEN_S = 0.008, 60.0
"""Pause between requests, and time until they end, for a ledger that the bookies have not seen, seconds: they cannot
long-poll for it."""
_PEEKED, _LARGE = 16, 64 * 1024
_FEW, _BEYOND = 8, 3
_GIVE_UP_S = 60.0

OnLac = Callable[[EntryId], None]
"""Called with a last confirmed entry that a bookie has proved."""


class StreamEntries(Protocol):
    def __call__(self, first: EntryId, last: EntryId, /) -> AsyncGenerator[list[Entry], None]:
        """Read the entries first..last, in chunks and in order."""
        ...


class Tail(NotCopied):
    """`async for entry in tail`, or `await tail.next_chunk()` for lists. One tail belongs to one consumer.

    Cancelling a wait loses nothing: the next one goes on where the last ended. Errors as for Reader.read, after a
    minute without a good copy; NoSuchLedger when the ledger is deleted. `aclose()` ends it early; closing the reader
    does too.
    """

    def __init__(
        self,
        services: Services,
        reads: LedgerReads,
        follower: LedgerFollower,
        scope: TaskScope,
        stream_entries: StreamEntries,
        on_lac: OnLac,
        start: EntryId,
        last_confirmed: EntryId,
    ) -> None:
        self._services = services
        self._reads = reads
        self._follower = follower
        self._scope = scope
        self._stream_entries = stream_entries
        self._on_lac = on_lac
        self._cursor = start
        self._lac = last_confirmed
        self._chunks: AsyncGenerator[list[Entry], None] | None = None
        self._fetched: deque[Entry] = deque()
        self._polls = LacPolls(services, reads, scope, self._keep)
        self._peeked: dict[EntryId, Entry] = {}
        """Verified entries from the cursor on that came with answers to polls, before they were confirmed."""
        self._failing_since: float | None = None
        self._pause_s = TAIL.first_s
        self._unseen_until = asyncio.get_running_loop().time() + _UNSEEN_S
        self._ended = False

    @property
    def position(self) -> EntryId:
        """Return the next entry to be delivered."""
        return self._fetched[0].entry_id if self._fetched else self._cursor

    def __aiter__(self) -> Tail:
        return self

    async def __anext__(self) -> Entry:
        if not self._fetched:
            self._fetched.extend(await self._fetch())
            if not self._fetched:
                raise StopAsyncIteration
        return self._fetched.popleft()

    async def next_chunk(self) -> list[Entry]:
        """Return the next entries, as many as came together; empty at the end of the ledger."""
        if self._fetched:
            chunk = list(self._fetched)
            self._fetched.clear()
            return chunk
        return await self._fetch()

    async def aclose(self) -> None:
        """End the tail early."""
        self._ended = True
        self._fetched.clear()
        self._polls.stop()
        await self._drop_stream()

    async def _fetch(self) -> list[Entry]:
        """Return at least one entry, or none at the end. It may be cancelled at every await."""
        follower = self._follower
        check_running(self._scope)
        follower.follow()
        while not self._ended:
            check_running(self._scope)
            # Taken before the look at the metadata, so that no change falls between look and wait.
            changed = follower.changes()
            metadata = follower.metadata
            end = readable_until(metadata, self._lac)
            if not metadata.closed and not follower.deleted:
                # Before the entries up to `end` are read and handled: what is confirmed meanwhile is then known.
                self._polls.begin(max(self._lac, self._cursor - 1), metadata)
            if self._cursor <= end:
                chunk = self._take_peeked(end) or await self._catch_up(metadata, end) or await self._read(end, changed)
                if chunk:
                    self._failing_since, self._pause_s = None, TAIL.first_s
                    return chunk
            elif metadata.closed:
                break
            elif follower.deleted:
                self._polls.stop()
                raise NoSuchLedger(self._reads.ledger_id)
            else:
                await self._wait(changed)
        self._polls.stop()
        return []

    def _take_peeked(self, end: EntryId) -> list[Entry]:
        """Return what is confirmed by now of what polls brought: a tail that keeps up needs no round trip for it."""
        found: list[Entry] = []
        if self._chunks is None:
            while self._cursor <= end and (entry := self._peeked.pop(self._cursor, None)) is not None:
                found.append(entry)
                self._cursor += 1
        return found

    def _keep(self, entry: Entry) -> None:
        """Keep an entry for later: an entry of this id can have no other payload, even if the ledger changes."""
        peeked, cursor = self._peeked, self._cursor
        if entry.entry_id < cursor:
            return
        if len(peeked) >= _PEEKED:
            self._peeked = peeked = {number: kept for number, kept in peeked.items() if number >= cursor}
        if len(peeked) < (_PEEKED if len(entry.payload) <= _LARGE else 4):
            peeked[entry.entry_id] = entry

    async def _catch_up(self, metadata: LedgerMetadata, end: EntryId) -> list[Entry]:
        """Return a few entries that no poll brought along, by one request to the bookie that proved the LAC, with what
        it has beyond `end`: a tail that reads only what is confirmed is behind again when it has read it. Empty if that
        does not apply."""
        bookie, first, reads = self._polls.proved_by, self._cursor, self._reads
        if (
            bookie is None
            or self._chunks is not None
            or end - first >= _FEW
            or metadata.closed
            or not quorum_of(metadata).mirrored
            or metadata.last_fragment.first_entry > first
        ):
            return []
        opener = partial(reads.digest.open_prefix, reads.ledger_id, first)
        try:
            async with asyncio.timeout(self._services.hedge_s):
                answer = await reads.batch(bookie, first, end - first + 1 + _BEYOND, opener, _no_matter)
        except TimeoutError:
            return []
        found: list[Entry] = []
        for entry in answer.value if isinstance(answer, Positive) else ():
            if entry.entry_id <= end:
                found.append(entry)
            else:
                self._keep(entry)
        self._cursor = first + len(found)
        return found

    async def _read(self, end: EntryId, changed: asyncio.Event) -> list[Entry]:
        """Return the next chunk up to `end`; empty if it should be looked at again."""
        loop = asyncio.get_running_loop()
        if self._chunks is None:
            self._chunks = self._stream_entries(self._cursor, end)
        chunk: list[Entry] = []
        try:
            chunk = await anext(self._chunks, chunk)
        except (ReadFailed, NoSuchEntry):
            # A stale ensemble or bookies that restart; the entry is confirmed, so it must be somewhere.
            if (nobody := self._services.bookies.nobody()) is not None:
                raise nobody from None
            self._failing_since = self._failing_since or loop.time()
            if loop.time() - self._failing_since > _GIVE_UP_S:
                self._failing_since = None
                raise
            await self._pause(changed)
            return []
        finally:
            if not chunk:
                await self._drop_stream()
        if chunk:
            self._cursor = chunk[-1].entry_id + 1
        return chunk

    async def _drop_stream(self) -> None:
        chunks, self._chunks = self._chunks, None
        if chunks is not None:
            await chunks.aclose()

    async def _wait(self, changed: asyncio.Event) -> None:
        """Wait until the cursor's entry is confirmed, the metadata changed, or a round of polls brought nothing."""
        lac = await self._polls.wait(changed)
        if lac is not None:
            self._lac = max(self._lac, lac)
            self._on_lac(self._lac)
        elif not changed.is_set():
            refused, unseen = self._polls.no_bookie_waited()
            if refused:
                # No bookie took the long poll (fenced, unknown there, unreachable): come back later, not at once.
                if unseen and asyncio.get_running_loop().time() < self._unseen_until:
                    self._pause_s = _UNSEEN_PAUSE_S
                await self._pause(changed)

    async def _pause(self, changed: asyncio.Event) -> None:
        """Sleep a little longer each time without progress; a change of the metadata ends it."""
        pause, self._pause_s = self._pause_s, min(2 * self._pause_s, TAIL.most_s)
        try:
            async with asyncio.timeout(pause):
                await changed.wait()
        except TimeoutError:
            return


def _no_matter(entries: int, size: int) -> None:
    """Ignore how large these entries are: it tells nothing about longer reads."""
