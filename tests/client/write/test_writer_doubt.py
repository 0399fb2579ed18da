"""A change of the ensemble whose write may still take effect: nobody is counted whom it would take out (S4)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.client.write.test_ensemble_change import FlakyStore, check_copies
from tests.support.polling import until
from tests.support.scripted_bookie import scripted

from buckram.client.write.writer import engine_of
from buckram.errors import MetadataUnavailable, VersionConflict
from buckram.seams import MetadataStore
from buckram.types import LedgerId, LedgerMetadata, Versioned


class LateStore(FlakyStore):
    """The next write of a ledger is on its way for as long as the test likes; the store is away from then on."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.catch = False
        self.late: tuple[LedgerId, LedgerMetadata, int] | None = None

    async def write_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> Versioned:
        if self.catch:
            self.catch, self.away = False, True
            self.late = ledger_id, metadata, version
            raise MetadataUnavailable("no answer")
        return await super().write_ledger(ledger_id, metadata, version)

    async def arrives(self) -> bool:
        """Whether the late write was taken."""
        assert self.late is not None
        with suppress(VersionConflict):
            await self._store.write_ledger(*self.late)
            return True
        return False


async def test_bookie_is_readmitted_only_after_writes_in_doubt_are_settled() -> None:
    stores: list[LateStore] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(LateStore(store))
        return stores[0]

    async with scripted(4, wrap=wrap) as (cluster, client), client.create() as writer:
        store = stores[0]
        await writer.append_many([b"x"] * 3)
        first, second, third = writer.metadata.last_fragment.ensemble
        spare = next(name for name in cluster.bookies if name not in (first, second, third))
        store.catch = True
        await cluster[first].kill()
        told = asyncio.ensure_future(writer.append(b"y"))
        await until(lambda: store.late is not None, "the change is on its way")
        assert await told == 3
        await cluster[spare].kill()
        await cluster[first].start()
        store.away = False
        await until(lambda: not writer.degraded, "back to full strength", 10.0)
        await cluster[third].kill()
        assert await writer.append_many([b"z"] * 5) == range(4, 9)
        assert not await store.arrives()
        await check_copies(cluster, writer, 2)
        await cluster[third].start()
        await until(lambda: not writer.degraded, "back again", 10.0)
        assert len(cluster.holders(writer.ledger_id, 8)) >= 2
        assert second in writer.metadata.last_fragment.ensemble


async def test_a_change_that_took_effect_late_is_followed() -> None:
    stores: list[LateStore] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(LateStore(store))
        return stores[0]

    async with scripted(4, wrap=wrap) as (cluster, client), client.create() as writer:
        store = stores[0]
        await writer.append_many([b"x"] * 3)
        first = writer.metadata.last_fragment.ensemble[0]
        spare = next(name for name in cluster.bookies if name not in writer.metadata.last_fragment.ensemble)
        store.catch = True
        await cluster[first].kill()
        told = asyncio.ensure_future(writer.append(b"y"))
        await until(lambda: store.late is not None, "the change is on its way")
        assert await told == 3
        await until(lambda: writer.degraded, "it goes on with those who are left")
        await cluster[first].start()
        assert await store.arrives()
        store.away = False
        await until(lambda: not writer.degraded, "the change is found and taken up", 10.0)
        assert first not in engine_of(writer)._window.ensemble
        assert spare in engine_of(writer)._window.ensemble
        async with asyncio.timeout(10):
            assert await writer.append_many([b"z"] * 5) == range(4, 9)
        await check_copies(cluster, writer, 2)
