"""Writers whose bookies fail: replacement, degraded mode and back, lost answers of the metadata store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.clock import pass_time
from tests.support.polling import until
from tests.support.scripted_bookie import NET, ScriptedCluster, scripted

from buckram.client.write.writer import Writer, engine_of
from buckram.config import NetConfig
from buckram.core.ledgers.metadata import fragment_of, in_recovery, recovered
from buckram.errors import Code, LedgerFenced, MetadataUnavailable, NotEnoughBookies, WriteFailed
from buckram.seams import MetadataStore
from buckram.types import LedgerId, LedgerMetadata, LedgerState, Versioned


async def check_copies(cluster: ScriptedCluster, writer: Writer, minimum: int) -> None:
    """S4 after the fact: every confirmed entry has `minimum` copies among the members that metadata names."""
    metadata = (await cluster.store.read_ledger(writer.ledger_id)).metadata
    for entry in range(writer.last_confirmed + 1):
        members = fragment_of(metadata, entry).ensemble
        e, w = metadata.ensemble_size, metadata.write_quorum
        write_set = [members[(entry + i) % e] for i in range(w)]
        holders = [m for m in write_set if entry in cluster[m].entries.get(writer.ledger_id, {})]
        assert len(holders) >= minimum, f"entry {entry} of {write_set} only at {holders}"


class FlakyStore:
    """Passes everything on; `plan` says what happens to the next writes of ledgers: lost before or after, or away."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.plan: list[str] = []
        self.away = self.away_for_reads = False
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read_ledger(self, ledger_id: LedgerId, watch: Any = None) -> Versioned:
        if self.away or self.away_for_reads:
            raise MetadataUnavailable("away")
        return await self._store.read_ledger(ledger_id, watch)

    async def create_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> Versioned:
        what = self.plan.pop(0) if self.plan else ""
        if what == "before":
            raise MetadataUnavailable("lost before")
        created = await self._store.create_ledger(ledger_id, metadata)
        if what == "after":
            raise MetadataUnavailable("lost after")
        return created

    async def write_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> Versioned:
        what = self.plan.pop(0) if self.plan else ""
        if self.away or what == "before":
            raise MetadataUnavailable("lost before")
        written = await self._store.write_ledger(ledger_id, metadata, version)
        self.writes += 1
        if what == "after":
            raise MetadataUnavailable("lost after")
        return written


async def load(writer: Writer, stop: asyncio.Event) -> int:
    """Append until told to stop; returns how many were acknowledged."""
    done = 0
    while not stop.is_set():
        assert await writer.append_many([b"%d" % i for i in range(done, done + 7)]) == range(done, done + 7)
        done += 7
    return done


@pytest.mark.parametrize("shape", ["3/3/2", "3/3/3", "4/2/2", "5/3/2"])
async def test_dead_bookies_are_replaced_under_load(shape: str) -> None:
    async with scripted(8) as (cluster, client):
        async with client.create(ensemble=shape) as writer:
            stop = asyncio.Event()
            task = asyncio.ensure_future(load(writer, stop))

            async def progress() -> None:
                reached = writer.last_confirmed + 30
                await until(lambda: writer.last_confirmed > reached, "progress")

            await progress()
            await cluster[writer.metadata.last_fragment.ensemble[0]].kill()
            await until(lambda: writer.ensemble_changes == 1, "an ensemble change")
            await progress()
            await cluster[writer.metadata.last_fragment.ensemble[1]].kill()
            await until(lambda: writer.ensemble_changes == 2, "another one")
            await progress()
            stop.set()
            done = await task
            assert not writer.degraded
        metadata = (await cluster.store.read_ledger(writer.ledger_id)).metadata
        assert len(metadata.fragments) == 3
        assert metadata.last_entry == done - 1
        await check_copies(cluster, writer, metadata.ack_quorum)
        assert sum(len(b.entries) for b in cluster.bookies.values()) == metadata.ensemble_size + 2


async def test_two_at_the_same_time_are_one_or_two_changes_and_nothing_hangs() -> None:
    async with scripted(7) as (cluster, client), client.create(ensemble="5/3/2") as writer:
        await writer.append_many([b"x"] * 20)
        members = writer.metadata.last_fragment.ensemble
        futures = [writer.append_nowait(b"y") for _ in range(10)]
        await asyncio.gather(cluster[members[0]].kill(), cluster[members[2]].kill())
        futures += [writer.append_nowait(b"z") for _ in range(10)]
        assert [await f for f in futures] == list(range(20, 40))
        await until(lambda: writer.metadata.last_fragment.first_entry > 0, "a change is recorded")
        await check_copies(cluster, writer, 2)


@pytest.mark.parametrize("code", [Code.READ_ONLY, Code.TOO_MANY_REQUESTS, Code.IO_ERROR, Code.BAD_REQUEST])
async def test_any_other_error_replaces_the_bookie(code: Code) -> None:
    async with scripted(4) as (cluster, client), client.create() as writer:
        await writer.append_many([b"x"] * 3)
        bad = writer.metadata.last_fragment.ensemble[1]
        cluster[bad].add_code = lambda entry: code
        await writer.append_many([b"x"] * 3)
        await until(lambda: writer.ensemble_changes == 1, "replaced")
        fragment = writer.metadata.last_fragment
        assert bad not in fragment.ensemble
        new = fragment.ensemble[1]
        held = list(range(fragment.first_entry, 6))
        await until(lambda: cluster[new].ids(writer.ledger_id) == held, "all that is pending is sent again")


async def test_a_hung_bookie_is_replaced_after_the_timeout() -> None:
    net = NetConfig(request_timeout_s=0.2, connect_timeout_s=0.2, sweep_interval_s=0.05)
    async with scripted(4, net=net) as (cluster, client), client.create(ensemble="3/3/3") as writer:
        await writer.append(b"x")
        cluster[writer.metadata.last_fragment.ensemble[2]].silent = True
        assert await writer.append(b"y") == 1
        assert writer.ensemble_changes == 1


async def test_degraded_when_nobody_can_replace_and_back_when_it_returns() -> None:
    async with scripted(3) as (cluster, client), client.create() as writer:
        await writer.append_many([b"x"] * 5)
        await cluster["b1"].kill()
        assert await writer.append_many([b"x"] * 5) == range(5, 10)
        await until(lambda: writer.degraded, "degraded")
        assert "b1" in writer.degraded_reason
        assert await writer.append_many([b"x"] * 5) == range(10, 15)
        assert len(writer.metadata.fragments) == 1
        await cluster["b1"].start()
        await until(lambda: not writer.degraded, "back to full strength")
        # Now b1 counts again: without it there are too few.
        await cluster["b0"].kill()
        assert await writer.append_many([b"x"] * 5) == range(15, 20)
        assert set(range(15, 20)) <= set(cluster["b1"].ids(writer.ledger_id))
        await check_copies(cluster, writer, 2)


async def test_a_connection_reset_alone_degrades_for_a_moment_only() -> None:
    """The bookie stays registered: no change of the list will tell that it can be used again."""
    async with scripted(3) as (cluster, client), client.create() as writer:
        for victim in ("b0", "b1", "b2", "b0"):
            await writer.append(b"x")
            cluster[victim].reset()
            await writer.append(b"y")
            await until(lambda: not writer.degraded and not engine_of(writer)._window.absent, "back", 3.0)
        await check_copies(cluster, writer, 2)


async def test_a_new_bookie_ends_degraded_mode() -> None:
    async with scripted(3) as (cluster, client), client.create() as writer:
        await cluster["b2"].kill()
        await writer.append(b"x")
        await until(lambda: writer.degraded, "degraded")
        await cluster.add("b3")
        await until(lambda: not writer.degraded, "replaced")
        assert "b3" in writer.metadata.last_fragment.ensemble
        assert await writer.append(b"y") == 1
        await check_copies(cluster, writer, 2)


async def test_a_bookie_that_comes_back_empty_is_not_taken_for_the_old_one() -> None:
    async with scripted(3) as (cluster, client), client.create() as writer:
        await writer.append(b"x")
        await cluster["b2"].kill()
        await writer.append(b"x")
        await until(lambda: writer.degraded, "degraded")
        cluster["b2"].incarnation = "2"
        cluster["b2"].entries.clear()
        await cluster["b2"].start()
        await pass_time(0.7)  # longer than the first retry
        assert writer.degraded
        await cluster.add("b3")
        await until(lambda: not writer.degraded, "replaced")
        assert "b2" not in writer.metadata.last_fragment.ensemble


async def test_an_incarnation_that_changes_counts_as_failed() -> None:
    async with scripted(4) as (cluster, client), client.create() as writer:
        await writer.append(b"x")
        wiped = writer.metadata.last_fragment.ensemble[0]
        cluster[wiped].incarnation = "2"
        await cluster[wiped].unregister()
        await cluster[wiped].register()
        await until(lambda: wiped not in writer.metadata.last_fragment.ensemble, "replaced")
        assert await writer.append(b"y") == 1


async def test_fewer_than_qa_end_the_writer() -> None:
    async with scripted(3) as (cluster, client):
        writer = await client.create()
        await writer.append(b"abc")
        await cluster["b0"].kill()
        await cluster["b1"].kill()
        with pytest.raises(WriteFailed, match=r"3/3/2.*only 1") as caught:  # noqa: PT012
            for _ in range(3):
                await writer.append(b"lost")
        assert isinstance(caught.value.__cause__, NotEnoughBookies)
        with pytest.raises(WriteFailed):
            await writer.close()
        metadata = (await cluster.store.read_ledger(writer.ledger_id)).metadata
        assert (metadata.last_entry, metadata.length) == (0, 3)


# -- the metadata store ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [["after"], ["before"], ["after", "after"], ["before", "after"]])
async def test_lost_answers_neither_repeat_nor_lose_a_change(plan: list[str]) -> None:
    stores: list[FlakyStore] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(FlakyStore(store))
        return stores[0]

    async with scripted(4, wrap=wrap) as (cluster, client):
        store = stores[0]
        store.plan = list(plan)
        async with client.create() as writer:
            await writer.append_many([b"abc"] * 3)
            store.plan = list(plan)
            await cluster[writer.metadata.last_fragment.ensemble[0]].kill()
            await writer.append_many([b"abc"] * 3)
            await until(lambda: writer.ensemble_changes == 1, "replaced")
            store.plan = list(plan)
        metadata = (await cluster.store.read_ledger(writer.ledger_id)).metadata
        assert len(metadata.fragments) == 2
        assert (metadata.state, metadata.last_entry, metadata.length) == (LedgerState.CLOSED, 5, 18)
        assert store.writes == 2, "one change and one close, whatever was lost"
        await check_copies(cluster, writer, 2)


async def test_writing_goes_on_without_the_metadata_store_and_a_failed_bookie() -> None:
    stores: list[FlakyStore] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(FlakyStore(store))
        return stores[0]

    async with scripted(4, wrap=wrap) as (cluster, client), client.create() as writer:
        await writer.append(b"x")
        dead = writer.metadata.last_fragment.ensemble[0]
        # The change is applied, but nobody learns of it until the store is back.
        stores[0].plan = ["after"]
        await cluster[dead].kill()
        task = asyncio.ensure_future(writer.append(b"y"))
        await until(lambda: stores[0].writes == 1, "the change is written")
        stores[0].away = True
        assert await task == 1
        await until(lambda: writer.degraded, "degraded")
        assert await writer.append(b"z") == 2
        assert "metadata" in writer.degraded_reason
        stores[0].away = False
        await until(lambda: not writer.degraded, "the change is found and taken up", 8.0)
        assert dead not in writer.metadata.last_fragment.ensemble
        assert await writer.append(b"z") == 3
        await check_copies(cluster, writer, 2)


async def test_a_recovery_seen_in_a_change_ends_the_writer() -> None:
    async with scripted(4) as (cluster, client):
        writer = await client.create()
        await writer.append(b"x")
        current = await cluster.store.read_ledger(writer.ledger_id)
        await cluster.store.write_ledger(writer.ledger_id, in_recovery(current.metadata), current.version)
        await cluster[writer.metadata.last_fragment.ensemble[0]].kill()
        with pytest.raises(LedgerFenced):  # noqa: PT012
            for _ in range(3):
                await writer.append(b"y")
        with pytest.raises(LedgerFenced):
            await writer.close()
        metadata = (await cluster.store.read_ledger(writer.ledger_id)).metadata
        assert metadata.state is LedgerState.CLOSED, "the owner knows what it acknowledged and may close"
        assert metadata.last_entry == writer.last_confirmed


async def test_close_after_a_recovery_that_found_the_same_is_success_else_not() -> None:
    async with scripted(3) as (cluster, client):
        for last, length, same in ((0, 3, True), (1, 6, False)):
            writer = await client.create()
            await writer.append(b"abc")
            current = await cluster.store.read_ledger(writer.ledger_id)
            recovering = in_recovery(current.metadata)
            other = await cluster.store.write_ledger(writer.ledger_id, recovering, current.version)
            ended = recovered(other.metadata, [], last, length)
            await cluster.store.write_ledger(writer.ledger_id, ended, other.version)
            if same:
                await writer.close()
            else:
                with pytest.raises(LedgerFenced, match="closed it at entry 1"):
                    await writer.close()


async def test_close_can_be_repeated_when_the_store_was_away() -> None:
    stores: list[FlakyStore] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(FlakyStore(store))
        return stores[0]

    async with scripted(3, wrap=wrap, net=NET) as (cluster, client):
        writer = await client.create()
        await writer.append(b"abc")
        stores[0].away = True
        closing = asyncio.ensure_future(writer.close())
        await pass_time(0.1)
        assert not closing.done()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        stores[0].away = False
        await writer.close()  # joins the one that went on
        assert (await cluster.store.read_ledger(writer.ledger_id)).metadata.closed
