"""Repair against scripted bookies: what is missing or bad is copied, members that are gone are replaced, M7 holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.readable_bookie import DIGEST, ReadableCluster, readable

from buckram.client.maintain.repair_report import Replacement
from buckram.cluster import Client
from buckram.config import ClientConfig
from buckram.errors import Code, NoSuchLedger, Unauthorized
from buckram.seams import MetadataStore
from buckram.types import LedgerMetadata, Versioned

FAST = ClientConfig(speculative_read_ms=40.0)


def payloads(count: int) -> list[bytes]:
    return [b"payload %d" % i for i in range(count)]


async def ledger(client: Client, count: int, **options: Any) -> tuple[int, tuple[str, ...]]:
    async with client.create(**options) as writer:
        if count:
            await writer.append_many(payloads(count))
    return writer.ledger_id, writer.metadata.last_fragment.ensemble


async def whole(cluster: ReadableCluster, client: Client, ledger_id: int, count: int) -> None:
    """Every member of every write set holds a good copy of each entry."""
    metadata = await client.metadata(ledger_id)
    size, width = metadata.ensemble_size, metadata.write_quorum
    for entry in range(count):
        fragment = max((f for f in metadata.fragments if f.first_entry <= entry), key=lambda f: f.first_entry)
        for i in range(width):
            bookie = cluster[fragment.ensemble[(entry + i) % size]]
            stored = bookie.stored(ledger_id, entry)
            assert stored is not None, f"entry {entry} at {bookie.name}"
            assert DIGEST.open(ledger_id, entry, stored).payload == b"payload %d" % entry


@pytest.mark.parametrize("shape", ["3/3/2", "3/2/2"])
async def test_a_sound_ledger_is_left_alone(shape: str) -> None:
    async with readable(config=FAST) as (_, client):
        ledger_id, _ = await ledger(client, 300, ensemble=shape)
        before = await client.services.store.read_ledger(ledger_id)
        progress: list[tuple[int, int]] = []
        report = await client.repair(ledger_id, progress=lambda done, of: progress.append((done, of)))
        replicas = 300 * before.metadata.write_quorum
        assert (report.fragments_checked, report.replicas_checked) == (1, replicas)
        assert (report.entries_copied, report.replaced, report.problems) == (0, (), ())
        assert report.healthy
        assert progress[-1] == (replicas, replicas)
        assert await client.services.store.read_ledger(ledger_id) == before


@pytest.mark.parametrize("shape", ["3/3/2", "3/2/2", "4/3/2"])
async def test_missing_and_flipped_entries_are_copied_from_good_replicas(shape: str) -> None:
    async with readable(4, config=FAST) as (cluster, client):
        ledger_id, ensemble = await ledger(client, 300, ensemble=shape)
        victim, other = cluster[ensemble[0]], cluster[ensemble[1]]
        held = victim.entries[ledger_id]
        lost = [entry for entry in list(held) if entry % 3 == 0 or entry > 250]
        for entry in lost:
            del held[entry]
        flipped = [entry for entry in list(other.entries[ledger_id]) if entry % 7 == 1 and entry not in lost]
        for entry in flipped:
            stored = other.entries[ledger_id][entry]
            other.entries[ledger_id][entry] = stored[:-1] + bytes([stored[-1] ^ 4])
        report = await client.repair(ledger_id)
        assert report.healthy
        assert report.entries_copied == len(lost) + len(flipped)
        await whole(cluster, client, ledger_id, 300)
        assert (await client.repair(ledger_id)).entries_copied == 0


async def test_a_member_that_is_gone_is_replaced_after_its_copies_are_durable() -> None:
    async with readable(5, config=FAST) as (cluster, client):
        ledger_id, ensemble = await ledger(client, 100, ensemble="4/3/2")
        spare = next(b for b in cluster.bookies if b not in ensemble)
        await cluster[ensemble[2]].kill()
        report = await client.repair(ledger_id)
        assert report.replaced == (Replacement(0, ensemble[2], spare),)
        assert report.healthy
        after = (await client.metadata(ledger_id)).last_fragment.ensemble
        assert after == (*ensemble[:2], spare, ensemble[3])
        await whole(cluster, client, ledger_id, 100)


async def test_nothing_is_replaced_when_a_copy_fails() -> None:
    async with readable(4, config=FAST) as (cluster, client):
        ledger_id, ensemble = await ledger(client, 50, ensemble="3/3/2")
        spare = next(b for b in cluster.bookies if b not in ensemble)
        cluster[spare].add_code = lambda entry: Code.IO_ERROR if entry == 40 else Code.OK
        await cluster[ensemble[0]].kill()
        report = await client.repair(ledger_id)
        assert not report.healthy
        assert report.replaced == ()
        assert (await client.metadata(ledger_id)).last_fragment.ensemble == ensemble


async def test_without_a_free_bookie_it_says_what_to_do() -> None:
    async with readable(config=FAST) as (cluster, client):
        ledger_id, ensemble = await ledger(client, 5)
        await cluster[ensemble[1]].kill()
        report = await client.repair(ledger_id)
        assert report.replaced == ()
        assert len(report.problems) == 1
        assert "start one more" in report.problems[0]


async def test_entry_without_a_good_copy_is_reported_and_the_rest_repaired() -> None:
    async with readable(config=FAST) as (cluster, client):
        ledger_id, ensemble = await ledger(client, 40, ensemble="3/3/2")
        for bookie in cluster.all:
            bookie.bad = {39}
        del cluster[ensemble[1]].entries[ledger_id][3]
        report = await client.repair(ledger_id)
        assert not report.healthy
        assert any("39" in problem for problem in report.problems)
        assert cluster[ensemble[1]].stored(ledger_id, 3) is not None


async def test_a_bookie_that_does_not_answer_is_not_taken_for_an_empty_one() -> None:
    async with readable(4, config=FAST) as (cluster, client):
        ledger_id, ensemble = await ledger(client, 5, ensemble="3/3/2")
        cluster[ensemble[0]].refuse = lambda request: Code.TOO_MANY_REQUESTS
        report = await client.repair(ledger_id)
        assert not report.healthy
        assert report.entries_copied == 0


@pytest.mark.parametrize("code", [Code.IO_ERROR, Code.UNKNOWN_LEDGER_STATE])
async def test_what_a_bookie_says_that_it_cannot_give_is_copied_to_it(code: Code) -> None:
    """In limbo that is all that can be done; what it still cannot read afterwards is not repaired."""
    async with readable(4, config=FAST) as (cluster, client):
        ledger_id, ensemble = await ledger(client, 5, ensemble="3/3/2")
        cluster[ensemble[0]].refuse = lambda request: code
        report = await client.repair(ledger_id)
        assert (report.healthy, report.entries_copied) == (code is Code.UNKNOWN_LEDGER_STATE, 5)


async def test_only_fragments_that_cannot_grow_are_touched() -> None:
    async with readable(4, config=FAST) as (cluster, client), client.create(ensemble="3/3/2") as writer:
        await writer.append_many(payloads(10))
        first = writer.metadata.last_fragment.ensemble
        await cluster[first[0]].kill()
        await writer.append_many(payloads(10))
        assert len(writer.metadata.fragments) == 2
        spare = next(b for b in cluster.bookies if b not in first)
        report = await client.repair(writer.ledger_id)
        assert report.fragments_checked == 1
        assert report.replaced == (Replacement(0, first[0], spare),)
        assert any("can still grow" in problem for problem in report.problems)
        await writer.append(b"the writer does not mind")


async def test_an_empty_last_fragment_is_rewritten_without_copies() -> None:
    async with readable(5, config=FAST) as (cluster, client):
        async with client.create(ensemble="2/2/2") as writer:
            await writer.append_many(payloads(3))
            old = writer.metadata.last_fragment.ensemble
        from dataclasses import replace

        from buckram.types import Fragment

        members = tuple(b for b in cluster.bookies if b not in old)[:2]
        versioned = await cluster.store.read_ledger(writer.ledger_id)
        tail = replace(versioned.metadata, fragments=(*versioned.metadata.fragments, Fragment(3, members)))
        await cluster.store.write_ledger(writer.ledger_id, tail, versioned.version)
        await cluster[members[0]].kill()
        report = await client.repair(writer.ledger_id)
        assert (report.healthy, report.entries_copied, len(report.replaced)) == (True, 0, 1)


class Racing:
    """Somebody else replaces the same member just before our write."""

    def __init__(self, inner: MetadataStore) -> None:
        self.inner = inner
        self.rival: LedgerMetadata | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def write_ledger(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> Versioned:
        rival, self.rival = self.rival, None
        if rival is not None:
            await self.inner.write_ledger(ledger_id, rival, version)
        return await self.inner.write_ledger(ledger_id, metadata, version)


async def test_a_rival_repair_is_not_undone() -> None:
    stores: list[Racing] = []

    def wrap(store: MetadataStore) -> Any:
        stores.append(Racing(store))
        return stores[0]

    async with readable(5, config=FAST, wrap=wrap) as (cluster, client):
        from buckram.core.ledgers.metadata import member_replaced

        ledger_id, ensemble = await ledger(client, 5, ensemble="3/3/2")
        spares = [b for b in cluster.bookies if b not in ensemble]
        await cluster[ensemble[0]].kill()
        metadata = await client.metadata(ledger_id)
        for spare in spares:
            cluster[spare].entries[ledger_id] = dict(cluster[ensemble[1]].entries[ledger_id])
        stores[0].rival = member_replaced(metadata, 0, ensemble[0], spares[0])
        report = await client.repair(ledger_id)
        assert report.replaced in ((), (Replacement(0, ensemble[0], spares[0]),))
        assert (await client.metadata(ledger_id)).last_fragment.ensemble == (spares[0], *ensemble[1:])


async def test_wrong_password_and_unknown_ledger() -> None:
    async with readable(config=FAST) as (_, client):
        ledger_id, _ = await ledger(client, 1, password="right")
        with pytest.raises(Unauthorized):
            await client.repair(ledger_id, password="wrong")
        with pytest.raises(NoSuchLedger):
            await client.repair(77)


class Paused:
    """Something happens between the copies of a repair and its change of metadata."""

    def __init__(self, inner: MetadataStore) -> None:
        self.inner = inner
        self.meanwhile: Callable[[LedgerMetadata], None] = lambda metadata: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def write_ledger(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> Versioned:
        self.meanwhile(metadata)
        return await self.inner.write_ledger(ledger_id, metadata, version)


@pytest.mark.parametrize("shape", ["3/3/2", "3/2/2"])
async def test_a_copy_that_was_collected_before_metadata_named_it_is_made_again(shape: str) -> None:
    """The repair was paused for longer than collection waits; it used to report the ledger as healthy."""
    stores: list[Paused] = []

    def wrap(store: MetadataStore) -> Any:
        stores.append(Paused(store))
        return stores[0]

    async with readable(4, config=FAST, wrap=wrap) as (cluster, client):
        ledger_id, ensemble = await ledger(client, 50, ensemble=shape)
        spare = next(b for b in cluster.bookies if b not in ensemble)
        await cluster[ensemble[0]].kill()
        stores[0].meanwhile = lambda metadata: cluster[spare].entries[ledger_id].clear()
        report = await client.repair(ledger_id)
        assert report.healthy
        assert report.replaced == (Replacement(0, ensemble[0], spare),)
        assert report.replicas_checked == 50 * int(shape[2])
        await whole(cluster, client, ledger_id, 50)


async def test_a_copy_that_is_gone_and_cannot_be_made_again_is_a_problem() -> None:
    stores: list[Paused] = []

    def wrap(store: MetadataStore) -> Any:
        stores.append(Paused(store))
        return stores[0]

    async with readable(4, config=FAST, wrap=wrap) as (cluster, client):
        ledger_id, ensemble = await ledger(client, 5, ensemble="3/3/2")
        spare = cluster[next(b for b in cluster.bookies if b not in ensemble)]
        await cluster[ensemble[0]].kill()

        def dropped(metadata: LedgerMetadata) -> None:
            spare.entries[ledger_id].clear()
            spare.add_code = lambda entry: Code.IO_ERROR

        stores[0].meanwhile = dropped
        report = await client.repair(ledger_id)
        assert not report.healthy
        assert "repair the ledger again" in report.problems[-1]
