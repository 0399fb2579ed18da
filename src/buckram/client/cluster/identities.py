"""The identity of the bookie that a client expects at an address: the cluster's instance id, the bookie's id, its
incarnation.

A registration says with IDENTITY_PROPERTY that its bookie answers introductions. A bookie without it (Apache's, older
ones) is used without an answer, unless the cluster requires one. Not here: the exchange itself
(`runtime/net/introductions.py`) and the list of bookies (`client/cluster/bookies.py`).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from buckram.client.cluster.bookies import BookieWatcher
from buckram.client.cluster.store_history import StoreHistory
from buckram.core.backoff import STORE_WATCH, Delays
from buckram.core.streams.metadata.transactions import history_mark
from buckram.core.wire.introduction import Expected, Identity, expected_of
from buckram.errors import MetadataError
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import MetadataStore
from buckram.types import BookieId, BookieInfo


class IdentityListener(Protocol):
    """A listener for what bookies tell in their identity."""

    def on_identity(self, bookie_id: BookieId, identity: Identity) -> None:
        """Called when a bookie proved to be the expected one and sent this identity."""
        ...


class Identities:
    """`start()` and `close()`. `cluster` is known from `start` on, before any connection is made."""

    def __init__(self, store: MetadataStore, bookies: BookieWatcher, past: StoreHistory) -> None:
        self._store, self._bookies, self.past = store, bookies, past
        self.cluster = ""
        self.clocks: IdentityListener | None = None
        """Clocks that receive the time of each bookie that answers; the client sets them before the first
        connection."""
        self._stale = asyncio.Event()
        self._scope = TaskScope("identities")

    async def start(self) -> None:
        """Read the instance id and follow what the cluster requires. ClusterNotInitialised, MetadataUnavailable."""
        self.cluster = await self._store.instance_id()
        await self.past.start()
        await self.refresh()
        self._scope.keep(self._follow, "required identity")

    @property
    def history_mark(self) -> str:
        """Return the mark of the history of the metadata that this client uses; empty if the bookies never noted any.

        It is that of all which the client ever did, because `past` refuses metadata of another history.
        """
        return history_mark(self.cluster, self.past.history)

    async def close(self) -> None:
        await self._scope.close()

    # -- ExpectedIdentities (runtime/net/introductions.py)

    def expected(self, bookie_id: BookieId) -> Expected:
        """Return the identity that the bookie must have. One that is not registered now is expected as it was
        registered last: a bookie that has lost its data meanwhile is another one."""
        known = self._bookies.last_info(bookie_id) or BookieInfo(bookie_id, None)
        return expected_of(self.cluster, known, required=self._bookies.identity_required, epoch=self.past.epoch)

    def on_identity(self, bookie_id: BookieId, identity: Identity) -> None:
        """Look at the epoch (StoreReplaced) and at the clock of an expected bookie that answered."""
        self.past.note_epoch(identity.epoch)
        if self.clocks is not None:
            self.clocks.on_identity(bookie_id, identity)

    def on_wrong_bookie(self, bookie_id: BookieId) -> None:
        """Handle a wrong bookie in the place of another: avoid it where there is a choice, and read its registration
        anew."""
        self._bookies.report_wrong_bookie(bookie_id)

    # -- what the cluster requires

    async def refresh(self) -> None:
        """Read now whether the cluster requires that bookies identify themselves. Raises MetadataError."""
        self._stale.clear()
        try:
            required = await self._store.identity_required(self._stale.set)
        except BaseException:
            self._stale.set()
            raise
        self._bookies.require_identity(required)

    async def _follow(self) -> None:
        delays = Delays(STORE_WATCH)
        while True:
            await self._stale.wait()
            try:
                await self.refresh()
                delays.reset()
            except MetadataError:
                # What was required last stays required while the metadata store is away.
                await asyncio.sleep(delays.take())
