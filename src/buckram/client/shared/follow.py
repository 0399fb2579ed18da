"""Follows one ledger's metadata through a watch. Newer versions only; the last one stays while the store is away."""

from __future__ import annotations

import asyncio

from buckram.core.backoff import STORE_WATCH, Delays
from buckram.errors import MetadataError, NoSuchLedger
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import MetadataStore
from buckram.types import LedgerId, LedgerMetadata, Versioned


class LedgerFollower:
    """The newest metadata of a ledger. Watches only after `follow` was called; `scope` owns its task."""

    def __init__(self, store: MetadataStore, ledger_id: LedgerId, current: Versioned, scope: TaskScope) -> None:
        self._store = store
        self._ledger_id = ledger_id
        self._current = current
        self._scope = scope
        self._stale = asyncio.Event()
        self._changed = asyncio.Event()
        self._following = False
        self.deleted = False

    @property
    def metadata(self) -> LedgerMetadata:
        return self._current.metadata

    @property
    def version(self) -> int:
        return self._current.version

    def follow(self) -> None:
        """Begin to watch (once): the metadata is read again now and after every change."""
        if not self._following and not self._current.metadata.closed:
            self._following = True
            self._stale.set()
            self._scope.keep(self._run, "follow metadata", wake=self._stale.set)

    async def refresh(self) -> LedgerMetadata:
        """Read now. NoSuchLedger if it was deleted, MetadataUnavailable if the store is away."""
        try:
            self._install(await self._store.read_ledger(self._ledger_id))
        except NoSuchLedger:
            self._gone()
            raise
        return self.metadata

    def changes(self) -> asyncio.Event:
        """Return an event that is set by the next change (or deletion) after this call."""
        if self._changed.is_set():
            self._changed = asyncio.Event()
        return self._changed

    async def _run(self) -> None:
        delays = Delays(STORE_WATCH)
        while not self.metadata.closed:
            await self._stale.wait()
            self._stale.clear()
            try:
                self._install(await self._store.read_ledger(self._ledger_id, self._stale.set))
                delays.reset()
            except NoSuchLedger:
                self._gone()
                return
            except MetadataError:
                self._stale.set()
                await asyncio.sleep(delays.take())

    def _install(self, seen: Versioned) -> None:
        if seen.version > self._current.version:
            self._current = seen
            self._changed.set()

    def _gone(self) -> None:
        self.deleted = True
        self._changed.set()
