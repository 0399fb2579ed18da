"""Whom a client expects at the address of a bookie: the cluster, the bookie's id, its incarnation.

A registration says with IDENTITY_PROPERTY that its bookie answers so; from one without it (Apache's, older ones) an
answer is not waited for in vain, unless the cluster requires it. Asking is net/introductions, the list
client/shared/bookies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from buckram.client.shared.bookies import BookieWatcher
from buckram.client.shared.past import Past
from buckram.core.backoff import STORE_WATCH, Delays
from buckram.core.wire.introduction import Expected, Identity, expected_of
from buckram.errors import MetadataError
from buckram.net.introductions import unheard
from buckram.net.tasks import TaskScope
from buckram.seams import MetadataStore
from buckram.types import BookieId, BookieInfo


class Identities:
    """`start()` and `close()`. `cluster` is known from `start` on, before any connection is made."""

    def __init__(self, store: MetadataStore, bookies: BookieWatcher, past: Past) -> None:
        self._store, self._bookies, self.past = store, bookies, past
        self.cluster = ""
        self.on_met: Callable[[BookieId, Identity], None] = unheard
        """Who else wants to hear what bookies say of themselves."""
        self._stale = asyncio.Event()
        self._scope = TaskScope("identities")

    async def start(self) -> None:
        """ClusterNotInitialised, MetadataUnavailable. What is required is followed from then on."""
        self.cluster = await self._store.instance_id()
        await self.past.start()
        await self.refresh()
        self._scope.spawn(self._follow(), "required identity")

    async def close(self) -> None:
        await self._scope.close()

    # -- net/introductions asks

    def expected(self, bookie_id: BookieId) -> Expected:
        """Whom to expect. Where it is not registered now, it is expected as it was: a bookie that has lost its data
        meanwhile is another one."""
        known = self._bookies.last_info(bookie_id) or BookieInfo(bookie_id, None)
        return expected_of(self.cluster, known, required=self._bookies.identity_required, epoch=self.past.epoch)

    def met(self, bookie_id: BookieId, identity: Identity) -> None:
        """It is who it should be."""
        self.past.heard(identity.epoch)
        self.on_met(bookie_id, identity)

    def stranger(self, bookie_id: BookieId) -> None:
        """Somebody else is in its place: avoid it where there is a choice, and look whether it is registered anew."""
        self._bookies.report_stranger(bookie_id)

    # -- what the cluster requires

    async def refresh(self) -> None:
        """Look now at what is required. MetadataError."""
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
