"""Bookies that lie are convicted by repair and recovery, get no new ensembles, and can be pardoned; others are not."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.polling import until
from tests.support.readable_bookie import ReadableBookie, ReadableCluster, readable

from buckram.client.maintain.replica_audit import ReplicaAuditor
from buckram.cluster import Client
from buckram.config import ClientConfig
from buckram.core.cluster.conviction import Accused, Deed, Evidence
from buckram.core.ledgers.quorum import Quorum
from buckram.core.ledgers.replica_audit import plan_pieces
from buckram.errors import Code, NotEnoughBookies
from buckram.metadata.maintain.checkup import examine
from buckram.metadata.records.bookie_health import accuse, pardon, read_accused
from buckram.metadata.tree.store import TreeStore

FAST = ClientConfig(speculative_read_ms=40.0, idle_lac_ms=0)


async def ledger(client: Client, count: int = 6, *, close: bool = True) -> int:
    writer = await client.create(ensemble="3/3/2", digest="mac")
    await writer.append_many([b"payload %d" % i for i in range(count)])
    await (writer.close() if close else writer.abandon())
    return writer.ledger_id


async def accused(cluster: ReadableCluster) -> list[Accused]:
    return await read_accused(cluster.store)


def swaps(bookie: ReadableBookie) -> None:
    """It answers with the entry before the one that was asked for."""
    honest = bookie.stored
    bookie.stored = lambda led, entry: honest(led, entry - 1 if entry > 0 else entry)  # type: ignore[method-assign]


def forgets(bookie: ReadableBookie) -> None:
    """It acknowledges and stores nothing."""
    bookie.stored = lambda led, entry: None  # type: ignore[method-assign]


async def test_repair_convicts_who_shows_other_entries() -> None:
    async with readable(4, config=FAST) as (cluster, client):
        ledger_id = await ledger(client)
        liar = (await client.metadata(ledger_id)).last_fragment.ensemble[1]
        swaps(cluster[liar])
        await client.repair(ledger_id)
        (one,) = await accused(cluster)
        assert (one.bookie, one.verdict, one.evidence[0].deed) == (liar, "convicted", Deed.MIXED)
        assert f"of ledger {ledger_id}" in str(one.evidence[0])


async def test_recovery_convicts_a_bookie_that_shows_other_entries_and_closes() -> None:
    async with readable(4, config=FAST) as (cluster, client):
        ledger_id = await ledger(client, close=False)
        members = (await client.metadata(ledger_id)).last_fragment.ensemble
        swaps(cluster[members[0]])
        for name in members[1:]:
            cluster[name].delay_s = lambda request: 0.05
        async with client.recover(ledger_id) as reader:
            assert reader.last_confirmed == 5
        assert [(one.bookie, one.verdict) for one in await accused(cluster)] == [(members[0], "convicted")]


async def test_repair_convicts_who_acknowledges_and_denies() -> None:
    async with readable(3, config=FAST) as (cluster, client):
        ledger_id = await ledger(client)
        forgets(cluster["b1"])
        report = await client.repair(ledger_id)
        assert not report.healthy
        assert "bookie b1 acknowledged it, and now answers that it does not have it" in report.problems[0]
        (one,) = await accused(cluster)
        assert (one.bookie, one.verdict, one.evidence[0].deed) == ("b1", "convicted", Deed.UNSTORED)


async def test_who_came_back_without_its_data_meanwhile_is_no_liar() -> None:
    async with readable(3, config=FAST) as (cluster, client):
        ledger_id = await ledger(client)
        bookie = cluster["b1"]
        forgets(bookie)
        added = asyncio.Event()

        def code(entry: int) -> Code:
            added.set()
            return Code.OK

        async def reborn() -> None:
            await added.wait()
            bookie.incarnation = "2"
            await bookie.register()

        bookie.add_code = code
        bookie.delay_s = lambda request: 0.2 if added.is_set() else 0.0
        again = asyncio.create_task(reborn())
        report = await client.repair(ledger_id)
        await again
        assert not report.healthy
        assert await accused(cluster) == []


async def test_damage_under_a_mac_makes_a_suspect_and_no_liar() -> None:
    async with readable(3, config=FAST) as (cluster, client):
        ledger_id = await ledger(client)
        cluster["b1"].bad = {2, 3}
        await client.repair(ledger_id)
        (one,) = await accused(cluster)
        assert (one.bookie, one.verdict) == ("b1", "suspect")
        assert [(e.deed, e.ledger, e.entry) for e in one.evidence] == [(Deed.DAMAGED, ledger_id, 2)]
        await (await client.create(ensemble="3/3/2")).close()  # a suspect goes on
        assert isinstance(cluster.store, TreeStore)
        found = [f"{one.state} {one.bookie}: {one.why}" for one in (await examine(cluster.store)).problems]
        assert any(one.startswith("bookie-accused b1: ") and "damaged: entry 2 " in one for one in found), found


async def test_damage_that_any_bookie_could_have_made_is_not_held_against_it() -> None:
    async with readable(3, config=FAST) as (cluster, client):
        async with client.create(ensemble="3/3/2", digest="crc32c") as writer:
            await writer.append_many([b"payload"] * 6)
        cluster["b1"].bad = {2, 3}
        await client.repair(writer.ledger_id)
        assert await accused(cluster) == []


async def test_the_convicted_get_no_new_ensembles_until_they_are_pardoned() -> None:
    async with readable(3, config=FAST) as (cluster, client):
        ledger_id = await ledger(client)
        forgets(cluster["b1"])
        await client.repair(ledger_id)
        bookies = client.services.bookies
        await bookies.refresh()
        assert bookies.read_order(("b1", "b0", "b2"))[-1] == "b1"
        assert all("b1" not in bookies.choose(Quorum(2, 2, 2)).members for _ in range(20))
        assert bookies.replace(("b0",), {0: "b0"}) == {0: "b2"}
        with pytest.raises(NotEnoughBookies):
            await client.create(ensemble="3/3/2")
        async with client.open(ledger_id) as reader:  # what is there stays readable
            assert len(await reader.read_payloads(0, 5)) == 6
        assert await pardon(cluster.store, "b1")
        assert not await pardon(cluster.store, "b1")

        def again() -> bool:
            return "b1" not in bookies.convicted

        await until(again, "the pardon is noticed by its watch")
        await (await client.create(ensemble="3/3/2")).close()


async def convict(cluster: ReadableCluster, name: str) -> None:
    """As somebody else's repair does."""
    await accuse(cluster.store, [Evidence(Deed.UNSTORED, name, "1", 0, 0, "seen elsewhere")])


@pytest.mark.parametrize("shape", ["3/3/2", "2/2/2", "4/2/2"])
async def test_a_running_writer_leaves_a_member_that_is_convicted(shape: str) -> None:
    async with readable(5, config=FAST) as (cluster, client):
        async with client.create(ensemble=shape, digest="mac") as writer:
            await writer.append_many([b"before"] * 5)
            liar = writer.metadata.last_fragment.ensemble[0]
            await convict(cluster, liar)
            await until(lambda: liar not in writer.metadata.last_fragment.ensemble, "left")
            assert await writer.append_many([b"after"] * 5) == range(5, 10)
            assert writer.metadata.fragments[-1].first_entry == 5
            assert not writer.degraded
        assert writer.ensemble_changes == 1


async def test_a_writer_keeps_a_convicted_member_until_another_bookie_is_there() -> None:
    async with readable(3, config=FAST) as (cluster, client):
        async with client.create(ensemble="3/3/2", digest="mac") as writer:
            await writer.append(b"before")
            await convict(cluster, "b1")
            await until(lambda: "b1" in client.services.bookies.convicted, "heard of it")
            assert await writer.append(b"with it") == 1
            assert (writer.ensemble_changes, writer.degraded) == (0, False)
            await cluster.add("b3")
            await until(lambda: "b1" not in writer.metadata.last_fragment.ensemble, "left")
            assert await writer.append(b"without it") == 2
        assert writer.metadata.fragments[-1].ensemble.count("b3") == 1


async def test_audit_tells_lies_from_damage_and_checkup_names_the_convicted() -> None:
    async with readable(3, config=FAST) as (cluster, client):
        ledger_id = await ledger(client)
        swaps(cluster["b1"])
        cluster["b2"].bad = {3}
        seen = await client.services.store.bookies()
        addresses = {info.bookie_id: info.address for info in seen.writable.values()}
        pieces = plan_pieces(ledger_id, await client.metadata(ledger_id), 1 << 20)
        async with ReplicaAuditor(cluster.runtime, addresses) as auditor:
            reports = {piece.bookie: await auditor.check(piece) for piece in pieces}
        assert {bookie: report.state for bookie, report in reports.items()} == {
            "b0": "good",
            "b1": "lied",
            "b2": "damaged",
        }
        assert f"of ledger {ledger_id}" in reports["b1"].lie
        assert [reports[name].unfit for name in ("b0", "b2")] == [-1, 3]
        await client.repair(ledger_id)
        assert isinstance(cluster.store, TreeStore)
        found = [f"{one.state} {one.bookie}: {one.why}" for one in (await examine(cluster.store)).problems]
        assert any(one.startswith("bookie-convicted b1: ") and "mixed: " in one for one in found), found
        assert not any(one.startswith("bookie-convicted b2") for one in found)
