"""Reading in bulk from the files of bookies on this machine: they say where entries are, and no entry crosses a socket.

Only a short way to good entries: whatever is not as it should be, and what is not in files yet, ends it early and says
nothing about what is there. The reader then asks the bookies as ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import TypeVar

from buckram.client.read.replicas import RangeOpener, ask
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.ledgers.reading import Span
from buckram.core.wire.located import MAX_EXTENT_BYTES, FileExtent, Located, bodies_of
from buckram.core.wire.messages import LocatedReply, ask_for_places
from buckram.errors import Code, HandleClosed
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import FileData, FileRange, LocalDirectory
from buckram.types import BookieId, EntryId, LedgerId

T = TypeVar("T")
_AHEAD = 3
GROUP_BYTES = 1024 * 1024
"""Number of bytes that are read together and checked in one turn of the loop."""


class _Ended(Exception):
    """Raised when reading from these files cannot go on; the caller asks the bookies."""


class LocalReads:
    """Reads one ledger from files; each of its bookies holds all of it."""

    def __init__(self, services: Services, ledger_id: LedgerId, digest: Digest, scope: TaskScope) -> None:
        self._services, self._scope = services, scope
        self._ledger, self._digest = ledger_id, digest

    def may(self) -> bool:
        """Return whether this client reads files at all; without a digest it could not notice that one was
        overwritten."""
        return self._services.runtime.files is not None and self._digest.size > 0

    async def chunks(
        self, span: Span, bookies: Sequence[BookieId], opener: RangeOpener[T]
    ) -> AsyncGenerator[list[T], None]:
        """Yield verified entries from the span's first on, in order, as far as the files go; `opener` checks them."""
        first, last, bookie = span.first, span.last, self.neighbour(bookies)
        if bookie is None:
            return
        directory: LocalDirectory | None = None
        try:
            async with aclosing(self.places(bookie, first, last)) as places:
                async for located in places:
                    if directory is None:
                        directory = self._open(bookie, located)
                    async with aclosing(self._read(directory, located.extents, first, last, opener)) as chunks:
                        async for chunk in chunks:
                            first += len(chunk)
                            yield chunk
                    if first != _end_of(located):
                        return
        except PermissionError:
            self._services.remote_bookies[bookie] = None
        except TimeoutError:
            self._services.bookies.report_slow(bookie)
        except (OSError, _Ended):
            return

    def neighbour(self, bookies: Sequence[BookieId]) -> BookieId | None:
        """Return the first of these bookies whose files may be on this machine, else None."""
        # A bookie that hung up on a batch read would do so again, and other requests would go with the connection.
        remote, hung_up = self._services.remote_bookies, self._services.batch_unsupported
        return next((one for one in bookies if one not in remote and one not in hung_up), None)

    async def places(self, bookie: BookieId, first: EntryId, last: EntryId) -> AsyncGenerator[Located, None]:
        """Yield where a bookie's files have entries first..last, in order, as far as that goes. TimeoutError.

        The question about what follows is on its way while the caller reads.
        """
        asked = self._scope.spawn(self._ask(bookie, first, last), f"places {first}")
        try:
            while (located := await self._soon(asked)) is not None:
                after = _end_of(located)
                if after <= first or self._scope.closed:
                    return
                first = after
                asked = self._scope.spawn(self._ask(bookie, first, last), f"places {first}")
                yield located
        finally:
            asked.cancel()

    async def _soon(self, coming: asyncio.Future[T]) -> T:
        """Wait no longer than any read waits before it asks another replica, too. Raises TimeoutError."""
        if coming.done():
            await asyncio.sleep(0)  # others have their turn, and the question for the next places goes out
            return coming.result()
        async with asyncio.timeout(self._services.hedge_s):
            return await coming

    async def _ask(self, bookie: BookieId, first: EntryId, last: EntryId) -> Located | None:
        if first > last:
            return None
        try:
            request = ask_for_places(self._ledger, first, last, self._digest.key, self._digest.birth)
            reply = await ask(self._services.pool, bookie, request)
        except HandleClosed:
            return None
        # A bookie that has nothing in files, or does not know the request, answers with an entry.
        if not isinstance(reply, LocatedReply) or reply.code is not Code.OK or reply.located.extents[0].first != first:
            return None
        return reply.located

    def _open(self, bookie: BookieId, located: Located) -> LocalDirectory:
        files = self._services.runtime.files
        directory = files.open(located.directory, located.identity) if files is not None else None
        if directory is None:
            self._services.remote_bookies[bookie] = None
            raise _Ended
        return directory

    async def _read(
        self,
        directory: LocalDirectory,
        extents: Sequence[FileExtent],
        first: EntryId,
        last: EntryId,
        opener: RangeOpener[T],
    ) -> AsyncGenerator[list[T], None]:
        groups = iter(groups_of(extents, GROUP_BYTES))
        ahead: deque[tuple[Sequence[FileExtent], asyncio.Future[list[FileData]]]] = deque()
        try:
            while True:
                while len(ahead) < _AHEAD and (group := next(groups, None)) is not None:
                    ahead.append((group, directory.read([FileRange(*extent[:3]) for extent in group])))
                if not ahead:
                    return
                group, coming = ahead[0]
                pieces = await self._soon(coming)
                ahead.popleft()
                found: list[T] = []
                whole = True
                for extent, piece in zip(group, pieces, strict=True):
                    if not whole or extent.first != first or not 0 < extent.entries <= last - first + 1:
                        return
                    bodies = bodies_of(extent, *piece)
                    opened = [] if bodies is None else opener(self._ledger, first, bodies)
                    if found:
                        found += opened
                    else:
                        found = opened
                    first += len(opened)
                    whole = len(opened) == extent.entries
                directory.give_back(pieces)
                if found:
                    yield found
                if not whole:
                    return
        finally:
            for _, coming in ahead:
                if not coming.cancel() and not coming.cancelled():
                    coming.exception()  # nobody else looks at it


def _end_of(located: Located) -> EntryId:
    """Return the entry behind the last one that is located."""
    return located.extents[-1].first + located.extents[-1].entries


def groups_of(
    extents: Sequence[FileExtent], most: int, largest: int = MAX_EXTENT_BYTES
) -> Iterator[Sequence[FileExtent]]:
    """Yield neighbouring places in groups of about `most` bytes, up to the first that is longer than `largest`."""
    begin = size = 0
    for at, extent in enumerate(extents):
        if extent.length > largest:
            extents = extents[:at]
            break
        if size and size + extent.length > most:
            yield extents[begin:at]
            begin, size = at, 0
        size += extent.length
    if extents[begin:]:
        yield extents[begin:]
