"""Notes of members that may lack entries: they are written in time, and those of deleted ledgers go by themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.bookie_kit import memory_metadata, running

from buckram.bookie.garbage.collector import Collector
from buckram.cluster import Client
from buckram.config import BookieConfig
from buckram.core.ledgers.deletions import NONE_DELETED, bucket_of, deletions_key
from buckram.errors import MetadataUnavailable
from buckram.metadata.records.incomplete_copies import forget_deleted, ledgers_behind, note_behind, noted_members
from buckram.testing import cluster


async def _ledger(client: Client) -> int:
    async with client.create() as writer:
        await writer.append(b"x")
    return writer.ledger_id


async def test_notes_of_deleted_ledgers_go_and_those_of_others_stay() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        store = client.services.store
        kept, deleted, unrecorded = [await _ledger(client) for _ in range(3)]
        for ledger in (kept, deleted, unrecorded):
            await note_behind(store, ledger, ["a:1", "b:1"])
        await client.delete(deleted)
        assert await forget_deleted(store) == 2
        assert await noted_members(store) == [(one, b) for one in (kept, unrecorded) for b in ("a:1", "b:1")]
        assert await forget_deleted(store) == 0


async def test_a_ledger_that_is_there_although_its_deletion_is_recorded_keeps_its_note() -> None:
    """As after a restore of metadata."""
    async with cluster(bookies=3) as c, c.client() as client:
        store, ledger = client.services.store, await _ledger(client)
        await note_behind(store, ledger, ["a:1"])
        key, deleted = deletions_key(store.own, bucket_of(ledger)), NONE_DELETED.and_these([ledger])
        await store.keys.create(key, deleted.encode())
        assert await forget_deleted(store) == 0
        assert await ledgers_behind(store) == [ledger]


async def test_a_bookie_that_collects_takes_them_back_without_autorecovery(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        for ledger in (1, 2):
            await kit.ledger(ledger)
            await note_behind(kit.metadata, ledger, [kit.id, "gone:1"])
        await kit.metadata.delete_ledger(1, (await kit.metadata.read_ledger(1)).version)
        finder = Collector(kit.store, kit.metadata, kit.id, BookieConfig(), lambda ledger: None)
        await finder.collect()
        assert await ledgers_behind(kit.metadata) == [2]


async def test_a_note_that_the_store_does_not_take_is_given_up_in_time() -> None:
    store = await memory_metadata()

    async def hangs(*arguments: object) -> int:
        return await asyncio.get_running_loop().create_future()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.keys, "create", hangs)
        with pytest.raises(MetadataUnavailable, match=r"within 0\.1 s"):
            await note_behind(store, 7, ["a:1"], 0.1)
    assert await noted_members(store) == []
