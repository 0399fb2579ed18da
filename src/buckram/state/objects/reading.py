"""Reading the bytes of an object: the entries of its extents, a range of them, in bounded pieces.

Not here: finding the object (`state/objects/objects.py`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.client.read.reader import Reader
from buckram.core.objects.rows import Extent, ObjectRow
from buckram.core.streams.names import StreamId
from buckram.errors import BuckramError, NoSuchEntry, NoSuchLedger, ObjectDamaged
from buckram.streams.shared.ownership import opened
from buckram.types import LedgerId

_OPEN_LEDGERS = 64
_KEPT_BYTES = 8 * 1024 * 1024
"""Size of the cache of recently read pack entries, bytes: neighbours in an entry are often read together."""


class ObjectReaders:
    """Keeps readers of the ledgers that were read last."""

    def __init__(self, client: LedgerClient, index: StreamId) -> None:
        """`index`: the log of the objects, for which their ledgers were made."""
        self._client, self._index = client, index
        self._readers: OrderedDict[int, asyncio.Future[Reader]] = OrderedDict()
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._kept_bytes = 0

    async def get(self, ledger: LedgerId) -> Reader:
        """Return a reader of the ledger, which this cache closes. Raises NoSuchLedger, ReadFailed, ForeignLedger."""
        found = self._readers.get(ledger)
        if found is None:
            found = self._readers[ledger] = asyncio.ensure_future(self._open(ledger))
            found.add_done_callback(partial(self._forget_failed, ledger))
            while len(self._readers) > _OPEN_LEDGERS:
                _, old = self._readers.popitem(last=False)
                old.add_done_callback(_close)
        self._readers.move_to_end(ledger)
        return await asyncio.shield(found)

    def _forget_failed(self, ledger: LedgerId, done: asyncio.Future[Reader]) -> None:
        """Drop a reader that could not be opened, so that the next call opens it again, whatever the error was."""
        if (done.cancelled() or done.exception() is not None) and self._readers.get(ledger) is done:
            del self._readers[ledger]

    async def _open(self, ledger: LedgerId) -> Reader:
        return await opened(self._client, self._index, ledger)

    async def close(self) -> None:
        readers, self._readers = self._readers, OrderedDict()
        for future in readers.values():
            try:
                await (await future).close()
            except BuckramError:
                continue

    async def pieces(self, name: str, row: ObjectRow, start: int, stop: int) -> AsyncIterator[bytes]:
        """Yield the bytes from `start` to `stop` (exclusive). Raises ObjectDamaged, ReadFailed (try again)."""
        place = 0
        for extent in row.extents:
            begin, end = max(start - place, 0), min(stop - place, extent.length)
            if begin < end:
                try:
                    async for piece in self._extent(extent, begin, end):
                        yield piece
                except (NoSuchLedger, NoSuchEntry) as error:
                    raise ObjectDamaged(name, f"bytes of it are gone: {error}") from error
            place += extent.length

    async def _extent(self, extent: Extent, begin: int, end: int) -> AsyncIterator[bytes]:
        if extent.chunk == 0:
            yield (await self._entry(extent))[extent.at + begin : extent.at + end]
            return
        reader = await self.get(extent.ledger)
        first, last = extent.entry + begin // extent.chunk, extent.entry + (end - 1) // extent.chunk
        at = (first - extent.entry) * extent.chunk
        async with aclosing(reader.payload_chunks(first, last)) as chunks:
            async for payloads in chunks:
                for payload in payloads:
                    piece = payload[max(begin - at, 0) : end - at]
                    at += len(payload)
                    if piece:
                        yield piece

    async def _entry(self, extent: Extent) -> bytes:
        """Return the entry of a pack, from the cache if it is there."""
        key = extent.ledger, extent.entry
        payload = self._kept.get(key)
        if payload is not None:
            self._kept.move_to_end(key)
            return payload
        reader = await self.get(extent.ledger)
        payload = (await reader.read_unconfirmed(extent.entry, extent.entry))[0].payload
        if key not in self._kept:
            self._kept[key] = payload
            self._kept_bytes += len(payload)
            while self._kept_bytes > _KEPT_BYTES:
                self._kept_bytes -= len(self._kept.popitem(last=False)[1])
        return payload


def _close(future: asyncio.Future[Reader]) -> None:
    """Close the least recently used reader. A read in progress then fails with an error and opens it again."""
    if not future.cancelled() and future.exception() is None:
        asyncio.ensure_future(future.result().close())  # noqa: RUF006 - it ends by itself
