"""One ledger's metadata as this client last saw it, the compare-and-set loop that changes it (2.8, S11), and its watch.

A follower takes newer versions only, and the last one stays while the metadata store is away.

Not here: which change is legal (`core/ledgers/metadata.py`); why and when to change it, which the caller decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from buckram.core.backoff import STORE_CONFLICT, STORE_WATCH, Delays
from buckram.errors import MetadataError, MetadataUnavailable, NoSuchLedger, VersionConflict
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import MetadataStore
from buckram.types import LedgerId, LedgerMetadata, LedgerState, Versioned

Change = Callable[[LedgerMetadata], LedgerMetadata | None]
"""Derives the new record from the present one; None means nothing is left to do; raises to give up. Pure: it is
called again, on the freshest record, after every conflict and every lost reply."""


class MetadataCell:
    """The last record known, never an older one after a newer one."""

    def __init__(self, store: MetadataStore, ledger_id: LedgerId, current: Versioned) -> None:
        self._store, self._ledger_id = store, ledger_id
        self._current = current
        self._doubt: int | None = None

    @property
    def metadata(self) -> LedgerMetadata:
        return self._current.metadata

    @property
    def current(self) -> Versioned:
        return self._current

    @property
    def in_doubt(self) -> bool:
        """Return whether a write of ours with an unknown fate may still be applied: then the record may not be what it
        seems."""
        return self._doubt is not None

    async def update(self, change: Change, *, within_s: float) -> LedgerMetadata:
        """Apply `change` until it has nothing left to do or its write succeeded; returns the record then.

        While the store is away it is read again (never guessed) for `within_s`, then MetadataUnavailable: the
        change may or may not have happened. After a conflict it is read after a sync, and from the second one on after
        a pause: a server that lies behind shows the refused version again and again. Also raises what `change` raises,
        and NoSuchLedger.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        delays, stale, conflicts = Delays(STORE_CONFLICT), False, 0
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    if conflicts > 1:
                        await asyncio.sleep(delays.take())
                    if stale:
                        if conflicts:
                            await self._store.sync()
                        self._install(await self._store.read_ledger(self._ledger_id))
                        stale = False
                    base = self._current
                    wanted = change(base.metadata)
                    if wanted is None:
                        return base.metadata
                    await self._write(wanted, base.version)
                if self._current.version > base.version:
                    return self._current.metadata
            except VersionConflict:
                stale, conflicts = True, conflicts + 1
            except (MetadataUnavailable, TimeoutError) as error:
                stale = True
                if loop.time() + delays.next_s >= deadline:
                    why = f"the metadata store gave no answer for {within_s} s"
                    if conflicts > 1:
                        why = f"for {within_s} s the record was another one each time ({conflicts} conflicts)"
                    raise MetadataUnavailable(
                        f"ledger {self._ledger_id}: {why}; the change may or may not have happened"
                    ) from error
                await asyncio.sleep(delays.take())

    async def settle(self, *, within_s: float) -> LedgerMetadata:
        """End a doubt: after this no earlier write of ours can still be applied. May write the record unchanged.

        A record that is no longer OPEN is left alone: its writer has come to its end anyway.
        """

        def same(metadata: LedgerMetadata) -> LedgerMetadata | None:
            # Updates write creator token 0, whatever else they do.
            unsettled = self._doubt is not None and metadata.state is LedgerState.OPEN
            return replace(metadata, creator_token=0) if unsettled else None

        return await self.update(same, within_s=within_s)

    async def _write(self, wanted: LedgerMetadata, version: int) -> None:
        # In doubt from before the first byte leaves until a newer version is seen, whatever ends the await. A refusal
        # does not end it: an earlier write of ours may be what changed the record, which shows only when it is read.
        self._doubt = version
        self._install(await self._store.write_ledger(self._ledger_id, wanted, version))

    def _install(self, seen: Versioned) -> None:
        if seen.version > self._current.version:
            self._current = seen
        if self._doubt is not None and seen.version > self._doubt:
            self._doubt = None


# -- following a ledger through a watch -----------------------------------------------------------------------


class LedgerFollower:
    """The newest metadata of a ledger. Watches only after `follow` was called; `scope` owns its task."""

    def __init__(self, store: MetadataStore, ledger_id: LedgerId, current: Versioned, scope: TaskScope) -> None:
        self._store = store
        self._ledger_id = ledger_id
        self._current = current
        self.metadata = current.metadata
        """The newest metadata that was read."""
        self._scope = scope
        self._stale = asyncio.Event()
        self._changed = asyncio.Event()
        self._following = False
        self.deleted = False

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
            self.metadata = seen.metadata
            self._changed.set()

    def _gone(self) -> None:
        self.deleted = True
        self._changed.set()
