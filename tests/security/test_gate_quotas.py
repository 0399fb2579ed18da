"""The quotas of ledgers and streams hold for what is created at the same time, and for a change with many streams."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from tests.support.bookie_kit import memory_metadata
from tests.support.gate_kit import Grants, Tenant, World
from tests.support.metadata_service_kit import ServedMetadata, service_store

from buckram.bookie.accounting.creation_quotas import QuotasOfCreations
from buckram.core.ledgers.metadata import created
from buckram.core.ledgers.metadata_codec import serialise
from buckram.core.streams.metadata.head import Head, encode_head
from buckram.core.tenants.quotas import Counts, Quotas
from buckram.errors import QuotaExceeded
from buckram.metadata.records.tenants import Published
from buckram.types import Create, KeyOp

RECORD = serialise(created(1, 1, 1, ("b",), custom_metadata={"buckram.namespace": b"shop"}))


@dataclass
class Use:
    """What `bookie/accounting/namespace_usage.py` knows."""

    quotas: Mapping[str, Quotas]
    published: Published = field(default_factory=Published)
    on: bool = True
    counts_begun: int = 0
    own_count: tuple[int, int] = (-1, 0)

    def full(self, namespace: str) -> QuotaExceeded | None:
        return None

    def counted(self, ledgers: int, begun: int) -> None:
        """A count that began as this one ends."""
        number = self.published.counts_round + 1
        self.own_count = number, begun
        self.published = Published(counts={"shop": Counts(ledgers)}, counts_round=number)


async def test_ledgers_that_are_being_created_count() -> None:
    use = Use({"shop": Quotas(ledgers=5)})
    creations = QuotasOfCreations(await memory_metadata(), use)
    go, made, refused = asyncio.Event(), 0, 0

    async def create() -> None:
        nonlocal made, refused
        try:
            async with creations.ledger(RECORD):
                await go.wait()
                made += 1
        except QuotaExceeded:
            refused += 1

    begun = [asyncio.create_task(create()) for _ in range(20)]
    await asyncio.sleep(0)
    use.counts_begun = 1
    use.counted(0, 1)  # none of them is there yet
    begun += [asyncio.create_task(create()) for _ in range(20)]
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*begun)
    assert (made, refused) == (5, 35)


async def test_what_is_created_during_a_count_counts_until_the_next_one() -> None:
    use = Use({"shop": Quotas(ledgers=3)})
    creations = QuotasOfCreations(await memory_metadata(), use)

    async def create() -> None:
        async with creations.ledger(RECORD):
            pass

    await create()
    use.counts_begun = 1  # a count begins, and sees the first one
    await create()
    use.counted(1, 1)
    await create()
    with pytest.raises(QuotaExceeded, match="3 of 3"):
        await create()
    use.counts_begun = 2
    use.counted(3, 2)
    with pytest.raises(QuotaExceeded, match="3 of 3"):
        await create()
    use.counts_begun = 3
    use.counted(2, 3)  # one was deleted
    await create()


async def test_a_creation_that_fails_counts_no_more() -> None:
    creations = QuotasOfCreations(await memory_metadata(), Use({"shop": Quotas(ledgers=1)}))
    for _ in range(3):
        with pytest.raises(RuntimeError):
            async with creations.ledger(RECORD):
                raise RuntimeError
    async with creations.ledger(RECORD):
        pass


async def test_streams_of_one_change_and_of_many_at_once_are_held_to_the_quota() -> None:
    store = await memory_metadata()
    creations = QuotasOfCreations(store, Use({"shop": Quotas(streams=4)}))

    def heads(*numbers: int) -> list[KeyOp]:
        folder = f"{store.own}/streams/heads/shop"
        return [Create(f"{folder}/s{number}", encode_head(Head(f"u{number}", 1))) for number in numbers]

    async def create(*numbers: int) -> bool:
        try:
            limited = creations.keys(heads(*numbers))
            assert limited is not None
            async with limited as also:
                await asyncio.sleep(0)
                await store.keys.multi([*heads(*numbers), *also])
                return True
        except QuotaExceeded:
            return False

    assert not await create(*range(100))
    done = await asyncio.gather(*(create(number) for number in range(20)))
    assert sum(done) == 4


async def test_streams_are_held_to_the_quota_through_all_bookies_together(world: World) -> None:
    served = [ServedMetadata(world._open, Grants(world.direct, "mallory", world.acl)) for _ in range(3)]
    clients = []
    for one in served:
        await one.start()
        one.service.creations = QuotasOfCreations(await world._open(), Use({"mall": Quotas(streams=4)}))
        store = service_store(await one.open(), "served", random.Random(len(clients)), 10.0)
        clients.append(Tenant(store, random.Random(len(clients))))

    async def create(number: int) -> bool:
        try:
            await clients[number % 3].stream(f"mall/s{number}")
            return True
        except QuotaExceeded:
            return False

    done = await asyncio.gather(*(create(number) for number in range(24)))
    folder = f"{world.direct.own}/streams/heads/mall"
    assert sum(done) == len(await world.direct.keys.children(folder)) == 4
    await world.direct.keys.delete(f"{folder}/s{done.index(True)}", 0)
    assert sum(await asyncio.gather(*(create(number) for number in range(30, 36)))) == 1
    for one in served:
        await one.close()
