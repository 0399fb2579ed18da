"""Ledgers that only bookies know come back as the ones that they were, by birth."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from buckram.client.maintain.salvage import Salvage, opened
from buckram.cluster import Client
from buckram.config import NetConfig
from buckram.core.ledgers.metadata import BIRTH, birth_of, creation_time_of
from buckram.errors import InvalidArgument, LedgerExists, LedgerIdUsed
from buckram.runtime.production import production_runtime
from buckram.testing import Cluster, cluster
from buckram.types import DigestType, LedgerMetadata

A, B = b"A" * 16, b"B" * 16
ENTRIES = [b"entry %d" % n for n in range(5)]


@asynccontextmanager
async def salvage(client: Client) -> AsyncIterator[Salvage]:
    store: Any = client.services.store
    seen = (await store.bookies()).writable
    addresses = {name: info.address for name, info in seen.items() if info.address is not None}
    async with opened(production_runtime(), NetConfig(), store, addresses) as asked:
        yield asked


async def forgotten(client: Client, ledger_id: int) -> LedgerMetadata:
    """The metadata store knows the ledger no more; bookies have not heard of that. What it knew."""
    store: Any = client.services.store
    found = await store.read_ledger(ledger_id)
    await store.keys.delete(await store.ledger_key(ledger_id), found.version)  # no deletion is recorded
    metadata: LedgerMetadata = found.metadata
    return metadata


async def test_what_was_deleted_on_purpose_is_neither_listed_nor_brought_back() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        lost, deleted = await left_open(client), await left_open(client)
        await forgotten(client, lost)
        async with salvage(client) as asked:
            (held,) = await asked.look([lost])
            found = await client.metadata(deleted)
            store: Any = client.services.store
            await store.delete_ledger(deleted, (await store.read_ledger(deleted)).version)
            assert found.custom_metadata["owner"] == b"me"
            assert [one.ledger_id for one in await asked.find()] == [lost]
            assert await asked.look([deleted]) == []
            held.ledger_id = deleted
            with pytest.raises(LedgerIdUsed):
                await asked.bring_back(held, b"", DigestType.MAC)
        store = client.services.store
        assert await store.list_ledgers() == []


async def left_open(client: Client) -> int:
    writer = await client.create(ensemble="3/3/2", digest="mac", custom_metadata={"owner": b"me"})
    await writer.append_many(ENTRIES)
    await writer.abandon()
    return writer.ledger_id


async def test_what_another_bookie_at_an_address_holds_is_not_taken_for_its_own() -> None:
    async with cluster(bookies=2) as c, c.client() as client:
        writer = await client.create(ensemble="1/1/1")
        await writer.append_many(ENTRIES)
        await writer.abandon()
        (holder,) = (await forgotten(client, writer.ledger_id)).last_fragment.ensemble
        store: Any = client.services.store
        seen = (await store.bookies()).writable
        (other,) = [name for name in seen if name != holder]
        wrong = {other: seen[holder].address}  # as after a change of machines: its address is another's now
        async with opened(production_runtime(), NetConfig(), store, wrong) as asked:
            assert await asked.look([writer.ledger_id]) == []
            assert [*asked.silent] == [other]


async def test_a_ledger_comes_back_with_its_birth_and_goes_on_being_that_ledger() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        ledger_id = await left_open(client)
        before = await forgotten(client, ledger_id)
        async with salvage(client) as asked:
            (found,) = await asked.look([ledger_id])
            assert set(found.births.values()) == {birth_of(before)}
            await asked.bring_back(found, b"", None)
            with pytest.raises(LedgerExists):
                await asked.bring_back(found, b"", None)
        now = await client.metadata(ledger_id)
        assert now.custom_metadata == {BIRTH: before.custom_metadata[BIRTH]}
        assert now.digest_type is DigestType.MAC
        async with client.recover(ledger_id) as reader:
            assert await reader.read_payloads(0, 4) == ENTRIES
        assert (await client.repair(ledger_id)).healthy
        assert not any(suspects(c)), "nothing contradicts what bookies know"


async def test_of_two_ledgers_that_had_the_id_the_one_that_is_named_comes_back() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        ledger_id = await left_open(client)
        await forgotten(client, ledger_id)
        async with salvage(client) as asked:
            (found,) = await asked.look([ledger_id])
            first, *others = sorted(found.holders)
            found.births = {first: A, **dict.fromkeys(others, B)}
            with pytest.raises(InvalidArgument, match=rf"hold 2 ledgers that had id {ledger_id}.*{A.hex()} at {first}"):
                await asked.bring_back(found, b"", None)
            await asked.bring_back(found, b"", None, B)
        now = await client.metadata(ledger_id)
        assert birth_of(now) == B
        assert sorted(now.last_fragment.ensemble) == others


async def test_a_time_of_creation_in_place_of_a_birth_comes_back_as_a_time() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        ledger_id = await left_open(client)
        await forgotten(client, ledger_id)
        made = LedgerMetadata(1, 1, 1, (), creation_time_ms=1_700_000_000_123)
        async with salvage(client) as asked:
            (found,) = await asked.look([ledger_id])
            found.births = dict.fromkeys(found.holders, birth_of(made))
            await asked.bring_back(found, b"", None)
        now = await client.metadata(ledger_id)
        assert (now.creation_time_ms, now.custom_metadata) == (1_700_000_000_123, {})
        assert creation_time_of(A) is None


def suspects(c: Cluster) -> list[str]:
    return [bookie.witness.suspect for node in c._nodes if (bookie := node.bookie) is not None and bookie.witness]
