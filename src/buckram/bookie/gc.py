"""Collection: which ledgers of this bookie nobody needs any more.

Compares the store with the metadata listing (F17). Deciding lives here; what burying does to the files is the
store's matter (store.bury, store.compact), and what a listing is the metadata store's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from buckram.bookie.store import Store
from buckram.bookie.store_errors import StoreError
from buckram.config import BookieConfig
from buckram.errors import AccessRefused, MalformedRecord, MetadataError, NoSuchKey, NoSuchLedger
from buckram.seams import MetadataStore
from buckram.types import BookieId, LedgerId, LedgerMetadata

log = logging.getLogger("buckram.bookie")
PAGE = 1000
EXAMINED_PER_ROUND = 2000
"""Ledger records read per round in search of copies that moved elsewhere; the next round goes on behind them."""


@dataclass(slots=True)
class _Moved:
    """A CLOSED ledger none of whose fragments named this bookie at `since` (loop time)."""

    since: float
    entries: list[tuple[int, int]]


def is_foreign(metadata: LedgerMetadata, bookie_id: BookieId) -> bool:
    """CLOSED and no fragment names the bookie. Never true for an open or recovering ledger (F17): a recoverer may
    have put entries here for an ensemble that is not in metadata yet."""
    return metadata.closed and not any(bookie_id in fragment.ensemble for fragment in metadata.fragments)


class Collector:
    """Finds dead ledgers in rounds. `run` is the endless form, `round` one comparison."""

    def __init__(
        self, store: Store, metadata: MetadataStore, bookie_id: BookieId, config: BookieConfig,
        on_buried: Callable[[LedgerId], None],
    ) -> None:
        self._store, self._metadata, self._bookie_id = store, metadata, bookie_id
        self._config, self._on_buried = config, on_buried
        self._absent: dict[LedgerId, float] = {}
        self._moved: dict[LedgerId, _Moved] = {}
        self._examined_up_to: LedgerId = -1
        self.rounds = 0
        self.collected = 0

    async def run(self) -> None:
        """Rounds and, after each, a compaction, until cancelled. A failed round deletes nothing."""
        while True:
            await asyncio.sleep(self._config.collection_interval_s)
            try:
                await self.round()
            except (MetadataError, StoreError) as error:
                log.warning("collection postponed: %s", error)
            try:
                await self._store.compact(None)
            except (StoreError, OSError) as error:
                log.warning("compaction postponed: %s", error)

    async def round(self) -> list[LedgerId]:
        """One comparison; returns the ledgers buried. MetadataError: the listing failed, nothing was deleted."""
        loop = asyncio.get_running_loop()
        # Own ledgers first: one that is created meanwhile is then not mistaken for a deleted one.
        own = self._own_ledgers()
        began = loop.time()
        listed = await self._listing()
        ended = loop.time()
        buried: list[LedgerId] = []
        absent: dict[LedgerId, float] = {}
        present: list[LedgerId] = []
        for ledger_id in own:
            if ledger_id in listed:
                present.append(ledger_id)
                continue
            since = self._absent.get(ledger_id)
            if since is not None and began - since >= self._config.collection_age_s:
                self._bury(ledger_id, buried)
            else:
                absent[ledger_id] = ended if since is None else since
        self._absent = absent
        await self._collect_moved(present, buried)
        self.rounds += 1
        return buried

    def _own_ledgers(self) -> list[LedgerId]:
        own: list[LedgerId] = []
        after = -1
        while page := self._store.ledgers(after, PAGE):
            own.extend(page)
            after = page[-1]
        return own

    async def _listing(self) -> set[LedgerId]:
        listed: set[LedgerId] = set()
        after = -1
        while page := await self._metadata.list_ledgers(after=after, limit=PAGE):
            listed.update(page)
            after = page[-1]
        return listed

    async def _collect_moved(self, present: list[LedgerId], buried: list[LedgerId]) -> None:
        """Copies of closed ledgers that metadata places elsewhere: the same two looks, `collection_age_s` apart.

        A ledger that changed here between the two looks starts again: somebody copies it to this bookie, and will
        name the bookie in metadata only when the copy is complete (M7).
        """
        loop = asyncio.get_running_loop()
        for ledger_id in [known for known in self._moved if known in self._absent or self._store.ledger(known) is None]:
            del self._moved[ledger_id]
        for ledger_id in self._slice(present):
            try:
                metadata = (await self._metadata.read_ledger(ledger_id)).metadata
            except (NoSuchLedger, NoSuchKey):
                continue  # deleted since the listing; the next listings will tell
            except (MalformedRecord, AccessRefused) as error:
                log.warning("ledger %d: its metadata cannot be read, so it is kept: %s", ledger_id, error)
                continue
            if not is_foreign(metadata, self._bookie_id):
                self._moved.pop(ledger_id, None)
                continue
            now, entries = loop.time(), self._store.entries(ledger_id)
            seen = self._moved.get(ledger_id)
            if seen is None or seen.entries != entries:
                self._moved[ledger_id] = _Moved(now, entries)
            elif now - seen.since >= self._config.collection_age_s:
                del self._moved[ledger_id]
                self._bury(ledger_id, buried)

    def _slice(self, present: list[LedgerId]) -> list[LedgerId]:
        """The next ledgers to examine, in rotation, so that a round costs a bounded number of metadata reads."""
        if len(present) <= EXAMINED_PER_ROUND:
            return present
        behind = [ledger_id for ledger_id in present if ledger_id > self._examined_up_to]
        chosen = behind[:EXAMINED_PER_ROUND]
        self._examined_up_to = chosen[-1] if len(behind) > EXAMINED_PER_ROUND else -1
        return chosen

    def _bury(self, ledger_id: LedgerId, buried: list[LedgerId]) -> None:
        self._store.bury(ledger_id)
        self.collected += 1
        buried.append(ledger_id)
        self._on_buried(ledger_id)
