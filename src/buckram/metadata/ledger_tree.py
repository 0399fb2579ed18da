"""Where a store keeps ledger records and gets new ids from: the part that differs between trees of keys.

`FolderTree` is Buckram's own way, for the embedded stores: one folder, and ids in blocks from a counter. Apache's ways
are zookeeper/ledgers.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from buckram.errors import KeyExists, MalformedRecord, MetadataUnavailable, NoSuchKey, VersionConflict
from buckram.metadata.layout import Layout
from buckram.seams import KeyStore
from buckram.types import MAX_LEDGER_ID, LedgerId

_MAX_ID_BLOCK = 128
_MAX_ID_TRIES = 100
_KNOWN = ("INSTANCEID", "all", "available", "cookies")


class LedgerTree(Protocol):
    """The ledgers of one cluster, for one session."""

    async def key(self, ledger_id: LedgerId) -> str:
        """The key of a ledger's record. InvalidArgument for an id that this tree cannot keep."""
        ...

    async def create(self, ledger_id: LedgerId, record: bytes) -> int:
        """Make the record: its version. KeyExists if there is one."""
        ...

    async def allocate(self) -> LedgerId:
        """An id that no allocation gave before. Only the ledger's creation decides that it is unused."""
        ...

    async def next_id(self) -> LedgerId:
        """No id from this one on was ever allocated."""
        ...

    async def page(self, after: LedgerId, limit: int) -> list[LedgerId]:
        """Ascending ids greater than `after`; empty means the end, a failure raises."""
        ...

    async def removed(self, key: str) -> None:
        """The record at `key` was deleted: tidy up what only it needed."""
        ...

    async def manager_name(self) -> str:
        """How ledgers are kept, in a word; MalformedRecord where the cluster says that in a way we do not know."""
        ...

    async def strays(self) -> list[str]:
        """Keys in the cluster's tree that belong to nothing that is known."""
        ...


class FolderTree:
    """All ledgers in one folder; a counter gives ids in blocks that grow, so that one ledger leaves no gap."""

    def __init__(self, keys: KeyStore, layout: Layout) -> None:
        self._keys, self._layout = keys, layout
        self._ids = range(0)
        self._id_block = 1
        self._id_lock = asyncio.Lock()

    async def key(self, ledger_id: LedgerId) -> str:
        return self._layout.ledger(ledger_id)

    async def create(self, ledger_id: LedgerId, record: bytes) -> int:
        return await self._keys.create(self._layout.ledger(ledger_id), record)

    async def page(self, after: LedgerId, limit: int) -> list[LedgerId]:
        name = self._layout.ledger_name(after) if after >= 0 else ""
        while True:
            names = await self._keys.children(self._layout.ledgers, after=name, limit=limit)
            found = [ledger_id for ledger_id in map(self._layout.ledger_id, names) if ledger_id is not None]
            if found or not names:
                return found
            name = names[-1]  # a page of foreign names is not the end

    async def removed(self, key: str) -> None:
        """The folder stays."""

    async def manager_name(self) -> str:
        return "one folder"

    async def strays(self) -> list[str]:
        root, ledgers, after = self._layout.root, self._layout.ledgers, ""
        found = [f"{root}/{name}" for name in await self._keys.children(root) if name not in _KNOWN]
        while page := await self._keys.children(ledgers, after=after):
            found += [f"{ledgers}/{name}" for name in page if self._layout.ledger_id(name) is None]
            after = page[-1]
        return found

    async def allocate(self) -> LedgerId:
        async with self._id_lock:
            if not self._ids:
                self._ids = await self._take_ids(self._id_block)
                self._id_block = min(2 * self._id_block, _MAX_ID_BLOCK)
            ledger_id, self._ids = self._ids[0], self._ids[1:]
            return ledger_id

    async def next_id(self) -> LedgerId:
        key = self._layout.next_ledger_id
        try:
            return _number(key, (await self._keys.get(key)).value)
        except NoSuchKey:
            return 0

    async def _take_ids(self, count: int) -> range:
        """Move the counter on by `count`. Ids of a process that ends are never given again."""
        key = self._layout.next_ledger_id
        for _ in range(_MAX_ID_TRIES):
            try:
                counter = await self._keys.get(key)
                first = _number(key, counter.value)
                if first + count > MAX_LEDGER_ID:
                    raise MalformedRecord(f"{key}: {first} leaves no ids below 2^63-1")
                await self._keys.set(key, b"%d" % (first + count), counter.version)
            except NoSuchKey:
                first = 0
                try:
                    await self._keys.create(key, b"%d" % count)
                except KeyExists:
                    continue
            except VersionConflict:
                continue
            return range(first, first + count)
        raise MetadataUnavailable(f"{key}: {_MAX_ID_TRIES} other processes took ids first; try again")


def _number(key: str, value: bytes) -> int:
    if not value.isdigit() or len(value) > 19:
        raise MalformedRecord(f"{key}: {value[:40]!r} is not a number")
    return int(value)
