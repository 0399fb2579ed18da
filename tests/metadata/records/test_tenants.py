"""Quotas and usage in the metadata store: what is set, what is read, two at once, backups."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.bookie_kit import memory_metadata

from buckram.core.tenants.quotas import Counts, Quotas, Usage
from buckram.errors import InvalidArgument, MalformedRecord
from buckram.metadata.maintain.backup import copy_of
from buckram.metadata.records.tenants import TenantStore
from buckram.types import Create


async def test_quotas_are_set_changed_and_taken_back() -> None:
    tenants = TenantStore(await memory_metadata())
    assert not await tenants.is_on()
    assert await tenants.set_quotas("shop", {"stored_bytes": 5}) == Quotas(5)
    assert await tenants.is_on()
    assert await tenants.set_quotas("shop", {"ledgers": 3}) == Quotas(5, ledgers=3)
    assert await tenants.quotas() == {"shop": Quotas(5, ledgers=3)}
    assert await tenants.quotas_of("log") == Quotas()
    with pytest.raises(InvalidArgument, match="bytes"):
        await tenants.set_quotas("shop", {"bytes": 5})
    assert not await tenants.set_quotas("shop", {"stored_bytes": None, "ledgers": None})
    assert await tenants.quotas() == {}


async def test_two_that_change_quotas_lose_nothing() -> None:
    store = await memory_metadata()
    names = ("stored_bytes", "ledgers", "streams", "databases", "connections")
    await asyncio.gather(*(TenantStore(store).set_quotas("shop", {name: 7}) for name in names))
    assert (await TenantStore(store).quotas_of("shop")).limits() == dict.fromkeys(names, 7)


async def test_a_bad_record_hides_no_other() -> None:
    store = await memory_metadata()
    tenants = TenantStore(store)
    await tenants.set_quotas("shop", {"ledgers": 3})
    await store.keys.multi([Create(f"{store.own}/tenants/quotas/bad", b"{")])
    assert await tenants.quotas() == {"shop": Quotas(ledgers=3)}
    with pytest.raises(MalformedRecord, match="quotas/bad"):
        await tenants.quotas_of("bad")


async def test_what_bookies_publish_adds_up_and_is_in_no_backup() -> None:
    store = await memory_metadata()
    tenants = TenantStore(store)
    await tenants.set_quotas("shop", {"ledgers": 3})
    for number, bookie in enumerate(("b1", "b2"), 1):
        await tenants.publish(bookie, {"shop": Usage(number)}, number)
        await tenants.publish(bookie, {"shop": Usage(10 * number)}, number + 1)
    await tenants.publish_counts({"shop": Counts(4)}, 9)
    found = await tenants.published()
    assert found.total["shop"].stored_bytes == 30
    assert (found.rounds, found.counts_round, found.counts["shop"].ledgers) == ({"b1": 2, "b2": 3}, 9, 4)
    kept = [one.key for one in (await copy_of(store)).keys if "/tenants" in one.key]
    assert f"{store.own}/tenants/quotas/shop" in kept
    assert not any("usage/" in key or key.endswith("/counts") for key in kept)
    await tenants.drop("b1")
    assert (await tenants.published()).total["shop"].stored_bytes == 20
