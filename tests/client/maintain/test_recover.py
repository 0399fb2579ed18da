"""Recovery over real connections to scripted bookies: fencing, coverage, private ensembles, agreement, idempotence."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.support.polling import until
from tests.support.readable_bookie import DIGEST, ReadableCluster, readable

from buckram.client.write.writer import Writer
from buckram.cluster import Client
from buckram.config import ClientConfig
from buckram.core.wire.messages import Read
from buckram.errors import (
    Code,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchLedger,
    RecoveryFailed,
    Unauthorized,
    VersionConflict,
)
from buckram.seams import MetadataStore
from buckram.types import LedgerMetadata, LedgerState, Versioned

QUIET = ClientConfig(idle_lac_ms=0, speculative_read_ms=40.0)


def payloads(count: int) -> list[bytes]:
    return [b"payload %d" % i for i in range(count)]


async def dead_writer(client: Client, count: int, **options: Any) -> Writer:
    """A ledger with `count` acknowledged entries whose writer never comes back."""
    writer = await client.create(**options)
    if count:
        await writer.append_many(payloads(count))
    await writer.abandon()
    return writer


async def state(cluster: ReadableCluster, ledger: int) -> LedgerMetadata:
    return (await cluster.store.read_ledger(ledger)).metadata


@pytest.mark.parametrize("shape", ["3/3/2", "3/2/2", "3/3/3", "2/2/1", "4/3/2", "1/1/1", "3/2/1"])
async def test_everything_acknowledged_is_kept(shape: str) -> None:
    async with readable(4, config=QUIET) as (cluster, client):
        writer = await dead_writer(client, 120, ensemble=shape)
        async with client.recover(writer.ledger_id) as reader:
            assert reader.last_confirmed == 119
            assert reader.length == sum(map(len, payloads(120)))
            assert await reader.read_payloads(0, 119) == payloads(120)
        metadata = await state(cluster, writer.ledger_id)
        assert (metadata.state, len(metadata.fragments)) == (LedgerState.CLOSED, 1)


async def test_an_empty_ledger_and_a_closed_one() -> None:
    async with readable(config=QUIET) as (cluster, client):
        writer = await dead_writer(client, 0)
        async with client.recover(writer.ledger_id) as reader:
            assert (reader.last_confirmed, reader.length) == (-1, 0)
        assert all(writer.ledger_id in b.fenced for b in cluster.all)
        for bookie in cluster.all:
            bookie.requests.clear()
        async with client.recover(writer.ledger_id) as reader:
            assert reader.last_confirmed == -1
        assert not any(b.requests for b in cluster.all)
        with pytest.raises(NoSuchLedger):
            await client.recover(4711)


async def test_a_live_writer_is_fenced_and_told_so() -> None:
    async with readable(config=QUIET) as (_, client):
        writer = await client.create()
        await writer.append_many(payloads(10))
        async with client.recover(writer.ledger_id) as reader:
            assert reader.last_confirmed == 9
        with pytest.raises(LedgerFenced):
            await writer.append(b"too late")
        await writer.abandon()


async def test_recovery_reads_fence_and_recovery_adds_freeze_the_lac() -> None:
    async with readable(config=QUIET) as (cluster, client):
        writer = await client.create()
        await writer.append(b"0")
        await writer.append(b"1")
        await writer.append(b"2")
        await writer.abandon()
        copies = [DIGEST.open(writer.ledger_id, 2, b.entries[writer.ledger_id][2]) for b in cluster.all]
        assert max(copy.last_add_confirmed for copy in copies) == 1
        ensemble = writer.metadata.last_fragment.ensemble
        # Entry 3 and 4 reached one bookie only, with headers as the writer would have made them.
        length = 3
        for entry in (3, 4):
            length += 1
            cluster[ensemble[0]].entries[writer.ledger_id][entry] = DIGEST.seal(
                writer.ledger_id, entry, 1, length, b"%d" % entry
            )
        # The bookie that has the others' copies of entry 2 only is told nothing of it.
        async with client.recover(writer.ledger_id) as reader:
            last = reader.last_confirmed
        assert last in (2, 4)  # 3 and 4 were never acknowledged: both ends are right
        for bookie in cluster.all:
            reads = [r for r in bookie.requests if isinstance(r, Read) and r.entry_id >= 0]
            assert all(r.fence for r in reads)
            for stored in bookie.entries[writer.ledger_id].values():
                assert DIGEST.open(writer.ledger_id, None, stored).last_add_confirmed <= 1
        for entry in range(last + 1):
            assert len(cluster.holders(writer.ledger_id, entry)) >= 2


async def test_one_bookie_down_is_enough_two_are_too_many() -> None:
    async with readable(config=QUIET) as (cluster, client):
        writer = await dead_writer(client, 20)
        await cluster["b1"].kill()
        cluster["b2"].silent = True
        with pytest.raises(RecoveryFailed, match="could be fenced"):
            await client.recover(writer.ledger_id)
        assert (await state(cluster, writer.ledger_id)).state is LedgerState.IN_RECOVERY
        cluster["b2"].silent = False
        async with client.recover(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, 19) == payloads(20)


async def test_an_entry_that_is_neither_found_nor_absent_is_not_guessed() -> None:
    async with readable(config=QUIET) as (cluster, client):
        writer = await dead_writer(client, 5)
        ledger = writer.ledger_id
        b0, b1, b2 = cluster.all
        del b0.entries[ledger][4]
        for bookie in (b1, b2):
            bookie.refuse = _only_the_last_one_is_broken
        with pytest.raises(RecoveryFailed, match="entry 4"):
            await client.recover(ledger)
        assert (await state(cluster, ledger)).state is LedgerState.IN_RECOVERY
        b1.refuse = b2.refuse = lambda r: None
        async with client.recover(ledger) as reader:
            assert reader.last_confirmed == 4


def _only_the_last_one_is_broken(request: object) -> Code | None:
    """Not shown in the fencing answer either."""
    wanted = request.entry_id if isinstance(request, Read) else None
    return {4: Code.IO_ERROR, -1: Code.NO_ENTRY}.get(wanted) if wanted is not None else None


async def test_recovery_replaces_a_failed_bookie_and_records_it_only_at_close() -> None:
    async with readable(4, config=QUIET) as (cluster, client):
        writer = await dead_writer(client, 30)
        ledger = writer.ledger_id
        ensemble = writer.metadata.last_fragment.ensemble
        spare = next(b for b in cluster.bookies if b not in ensemble)
        victim = cluster[ensemble[1]]
        victim.add_code = lambda entry: Code.IO_ERROR if entry >= 10 else Code.OK
        cluster[spare].held = []
        other = next(b for b in ensemble if b != victim.name)
        cluster[other].held = []
        recovery = asyncio.ensure_future(_recover(client, ledger))
        await until(lambda: bool(cluster[spare].held), "adds at the spare bookie")
        during = await state(cluster, ledger)
        assert (during.state, during.fragments) == (LedgerState.IN_RECOVERY, writer.metadata.fragments)
        cluster[spare].release()
        cluster[other].release()
        assert await recovery == 29
        metadata = await state(cluster, ledger)
        assert spare in metadata.last_fragment.ensemble
        assert victim.name not in metadata.last_fragment.ensemble
        async with client.open(ledger) as reader:
            assert await reader.read_payloads(0, 29) == payloads(30)
        for entry in range(metadata.last_fragment.first_entry, 30):
            assert len(set(cluster.holders(ledger, entry)) & set(metadata.last_fragment.ensemble)) >= 2


async def _recover(client: Client, ledger: int) -> int:
    async with client.recover(ledger) as reader:
        return reader.last_confirmed


async def test_without_a_spare_bookie_it_goes_on_at_the_ack_quorum() -> None:
    async with readable(config=QUIET) as (cluster, client):
        writer = await dead_writer(client, 10)
        cluster["b1"].add_code = lambda entry: Code.IO_ERROR
        assert await _recover(client, writer.ledger_id) == 9
        cluster["b0"].add_code = lambda entry: Code.IO_ERROR
        other = await dead_writer_after(cluster, client)
        with pytest.raises(RecoveryFailed, match="2 are needed"):
            await _recover(client, other)


async def dead_writer_after(cluster: ReadableCluster, client: Client) -> int:
    codes = [b.add_code for b in cluster.all]
    for bookie in cluster.all:
        bookie.add_code = lambda entry: Code.OK
    writer = await dead_writer(client, 10)
    for bookie, code in zip(cluster.all, codes, strict=True):
        bookie.add_code = code
    return writer.ledger_id


async def test_many_recoveries_at_once_agree() -> None:
    async with readable(4, config=QUIET) as (cluster, client):
        writer = await dead_writer(client, 50, ensemble="4/2/2")
        ends = await asyncio.gather(*(_recover(client, writer.ledger_id) for _ in range(5)))
        assert ends == [49] * 5
        metadata = await state(cluster, writer.ledger_id)
        assert metadata.length == sum(map(len, payloads(50)))


async def test_length_when_nothing_is_left_to_recover() -> None:
    """An ensemble change that no entry followed: the last entry lies in the fragment before (S13)."""
    async with readable(5, config=QUIET) as (cluster, client):
        writer = await client.create(ensemble="2/2/2")
        await writer.append_many(payloads(6))
        old = writer.metadata.last_fragment.ensemble
        await writer.abandon()
        new = tuple(b for b in cluster.bookies if b not in old)[:2]
        from buckram.core.ledgers.metadata import ensemble_changed

        versioned = await cluster.store.read_ledger(writer.ledger_id)
        changed = ensemble_changed(versioned.metadata, 6, new)
        await cluster.store.write_ledger(writer.ledger_id, changed, versioned.version)
        async with client.recover(writer.ledger_id) as reader:
            assert (reader.last_confirmed, reader.length) == (5, sum(map(len, payloads(6))))


async def test_wrong_password_changes_nothing() -> None:
    async with readable(config=QUIET) as (cluster, client):
        writer = await dead_writer(client, 3, password="right")
        before = await cluster.store.read_ledger(writer.ledger_id)
        with pytest.raises(Unauthorized):
            await client.recover(writer.ledger_id, password="wrong")
        with pytest.raises(Unauthorized):
            await client.delete(writer.ledger_id, password="wrong")
        assert await cluster.store.read_ledger(writer.ledger_id) == before
        assert not any(b.fenced for b in cluster.all)
        async with client.recover(writer.ledger_id, password="right") as reader:
            assert reader.last_confirmed == 2


async def test_a_bookie_that_refuses_the_key_ends_it() -> None:
    async with readable(config=QUIET) as (cluster, client):
        writer = await dead_writer(client, 3)
        for bookie in cluster.all:
            bookie.refuse = lambda r: Code.UNAUTHORIZED if isinstance(r, Read) and r.fence else None
        with pytest.raises(Unauthorized):
            await client.recover(writer.ledger_id)


async def test_damaged_copies_are_recovered_from_good_ones() -> None:
    async with readable(config=QUIET) as (cluster, client):
        writer = await dead_writer(client, 10)
        cluster["b0"].bad = set(range(10))
        async with client.recover(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, 9) == payloads(10)


class LossyStore:
    """Loses replies, or has somebody else interfere, at the writes that a test names by number."""

    def __init__(self, inner: MetadataStore) -> None:
        self.inner = inner
        self.writes = 0
        self.lose: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def write_ledger(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> Versioned:
        number, self.writes = self.writes, self.writes + 1
        written = await self.inner.write_ledger(ledger_id, metadata, version)
        if number in self.lose:
            raise MetadataUnavailable("the reply was lost")
        return written


@pytest.mark.parametrize("lost", [{0}, {1}, {0, 1}])
async def test_lost_replies_of_the_metadata_store_do_no_harm(lost: set[int]) -> None:
    stores: list[LossyStore] = []

    def wrap(store: MetadataStore) -> Any:
        stores.append(LossyStore(store))
        return stores[0]

    async with readable(config=QUIET, wrap=wrap) as (cluster, client):
        writer = await dead_writer(client, 5)
        stores[0].writes, stores[0].lose = 0, lost
        assert await _recover(client, writer.ledger_id) == 4
        versioned = await cluster.store.read_ledger(writer.ledger_id)
        assert versioned.version == 2  # created, IN_RECOVERY, CLOSED and nothing more


async def test_delete_recovers_first_and_says_when_it_cannot() -> None:
    async with readable(config=QUIET) as (cluster, client):
        live = await client.create()
        await live.append(b"x")
        await client.delete(live.ledger_id)
        with pytest.raises(LedgerFenced):
            await live.append(b"after the deletion")
        await live.abandon()
        with pytest.raises(NoSuchLedger):
            await client.metadata(live.ledger_id)
        with pytest.raises(NoSuchLedger):
            await client.delete(live.ledger_id)
        writer = await dead_writer(client, 3)
        for bookie in cluster.all:
            await bookie.kill()
        with pytest.raises(RecoveryFailed):
            await client.delete(writer.ledger_id)
        await client.delete(writer.ledger_id, force=True)
        assert [ledger async for ledger in client.list()] == []


async def test_a_lost_reply_or_a_conflict_does_not_confuse_delete() -> None:
    class Store(LossyStore):
        deletes = 0

        async def delete_ledger(self, ledger_id: int, version: int) -> None:
            self.deletes += 1
            if self.deletes == 1:
                raise VersionConflict("somebody repaired it", version)
            await self.inner.delete_ledger(ledger_id, version)
            if self.deletes == 2:
                raise MetadataUnavailable("the reply was lost")

    async with readable(config=QUIET, wrap=lambda store: Store(store)) as (_, client):
        writer = await dead_writer(client, 1)
        await client.delete(writer.ledger_id)
        assert [ledger async for ledger in client.list()] == []


async def test_a_long_tail_is_recovered_quickly() -> None:
    async with readable(config=QUIET) as (_, client):
        writer = await dead_writer(client, 3000)
        begun = time.perf_counter()
        assert await _recover(client, writer.ledger_id) == 2999
        print("3000 entries in", time.perf_counter() - begun)
