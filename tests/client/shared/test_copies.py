"""The end of a client: bookies that are behind the quorum get what a sealed ledger has for them, within bounds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from typing import Any, cast

import pytest
from tests.support.clock import pass_time
from tests.support.polling import until
from tests.support.scripted_bookie import NET, ScriptedBookie, scripted

from buckram.client.shared import lagging_replicas
from buckram.client.shared.lagging_replicas import Copies
from buckram.config import ClientConfig
from buckram.core.backoff import Backoff
from buckram.metadata.records.incomplete_copies import BEHIND, ledgers_behind, noted_members
from buckram.metadata.tree.store import TreeStore
from buckram.seams import KeyStore
from buckram.types import LedgerMetadata, Versioned


def hold(bookie: ScriptedBookie) -> None:
    bookie.held = []


@pytest.mark.parametrize("shape", ["3/3/2", "3/2/1"])
async def test_closing_waits_for_bookies_that_are_behind(shape: str) -> None:
    async with scripted() as (cluster, client):
        hold(cluster["b2"])
        writer = await client.create(ensemble=shape)
        await writer.append_many([b"%d" % n for n in range(20)])
        closed = asyncio.ensure_future(writer.close())
        await until(lambda: bool(cluster["b2"].held), "the adds arrived")
        await pass_time(0.05)
        assert not closed.done()
        cluster["b2"].release()
        await asyncio.wait_for(closed, NET.request_timeout_s / 2)
        assert await writer.replicated()
        assert not await ledgers_behind(cluster.store)
        assert all(len(cluster.holders(writer.ledger_id, entry)) == int(shape[2]) for entry in range(20))


async def test_copies_that_wait_for_a_connection_are_not_dropped() -> None:
    """Two of three answer while the connection to the third one is still being made: it gets its copies, too."""
    async with scripted() as (cluster, client):
        network, connect = cluster.runtime.network, cluster.runtime.network.connect
        open_door = asyncio.Event()

        async def late(host: str, port: int, factory: object) -> object:
            if port == cluster["b1"].port:
                await open_door.wait()
            return await connect(host, port, factory)  # type: ignore[arg-type]  # passed on as it came

        network.connect = late  # type: ignore[method-assign, assignment]  # a slow way to one bookie
        asyncio.get_running_loop().call_later(0.05, open_door.set)
        async with client.create() as writer:
            await writer.append(b"x")
        await client.close()
        assert cluster.holders(writer.ledger_id, 0) == ["b0", "b1", "b2"]


async def test_one_that_hangs_is_waited_for_as_long_as_for_any_answer() -> None:
    async with scripted(config=ClientConfig(close_copies_s=0.05)) as (cluster, client):
        cluster["b0"].silent = True
        writers = [await client.create() for _ in range(5)]
        for writer in writers:
            await writer.append(b"x")
            await writer.close()
        ended, waits = asyncio.ensure_future(client.close()), 0
        while not (await asyncio.wait([ended], timeout=NET.request_timeout_s / 10))[0]:
            waits += 1
        assert waits < 20  # not once for each writer; counted, as a machine may stand still


async def test_a_close_that_has_waited_long_enough_notes_who_lacks_entries() -> None:
    """Before the record says that the ledger is closed, so that nobody sees a closed one that lacks copies unnoted."""
    order: list[str] = []

    class Noting(TreeStore):
        async def write_ledger(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> Versioned:
            if metadata.closed:
                order.append(f"closed, noted {await ledgers_behind(self)}")
            return await super().write_ledger(ledger_id, metadata, version)

    config = ClientConfig(close_copies_s=0.05)
    async with scripted(config=config, wrap=lambda store: Noting(store.keys, store.uri, random.Random(1))) as (
        cluster,
        client,
    ):
        cluster["b2"].silent = True
        writer = await client.create()
        await writer.append(b"x")
        await asyncio.wait_for(writer.close(), NET.request_timeout_s / 2)
        assert order == [f"closed, noted [{writer.ledger_id}]"]
        assert await noted_members(cluster.store) == [(writer.ledger_id, "b2")]
        assert not await writer.replicated()
        assert not client.services.pending_copies


async def test_a_note_that_was_not_taken_in_time_is_written_once_the_store_answers_and_holds_up_no_close() -> None:
    class Keys:
        """Does not answer to notes until a ledger was closed."""

        def __init__(self, keys: KeyStore) -> None:
            self._keys = keys
            self.closed = False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._keys, name)

        async def create(self, key: str, value: bytes, **options: Any) -> int:
            if BEHIND in key and not self.closed:
                await asyncio.get_running_loop().create_future()
            return await self._keys.create(key, value, **options)

    class Store(TreeStore):
        async def write_ledger(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> Versioned:
            found = await super().write_ledger(ledger_id, metadata, version)
            cast(Keys, self.keys).closed |= metadata.closed
            return found

    config = ClientConfig(close_copies_s=0.05)
    async with scripted(
        config=config, wrap=lambda store: Store(cast(KeyStore, Keys(store.keys)), store.uri, random.Random(1))
    ) as (cluster, client):
        cluster["b2"].silent = True
        writer = await client.create()
        await writer.append(b"x")
        await asyncio.wait_for(writer.close(), config.close_copies_s + 4.0)  # two are promised, and machines are busy
        assert await noted_members(cluster.store) == [(writer.ledger_id, "b2")]


async def test_what_is_not_sealed_is_not_waited_for() -> None:
    async with scripted() as (cluster, client):
        for name in ("b1", "b2"):
            hold(cluster[name])
        writer = await client.create()
        waiting = writer.append_nowait(b"x")
        await until(lambda: all(cluster[name].held for name in ("b1", "b2")), "the add arrived")
        await asyncio.wait_for(client.close(), NET.request_timeout_s / 2)
        assert waiting.exception() is not None
        for name in ("b1", "b2"):
            cluster[name].release()


async def test_counting() -> None:
    lagging: dict[Copies, None] = {}
    copies = Copies(lagging)
    copies.unanswered += 6
    copies.answered(2)
    copies.complete()
    assert list(lagging) == [copies]
    copies.answered(3)
    await copies.wait(0.0)  # gives up
    assert not lagging
    copies.answered(1)
    await copies.wait(60.0)


async def test_a_ledger_lags_until_its_copies_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lagging_replicas, "LAGGING_MEMBER", Backoff(0.01, 0.02))
    async with scripted() as (_, client):
        lagging, answers = client.services.lagging, [False, False, True]
        asked: list[list[str]] = []

        async def copy_missing(members: Collection[str]) -> bool:
            asked.append(list(members))
            return answers.pop(0)

        await until(lambda: "b2" in client.services.bookies.bookies.writable, "b2 is known")
        lagging.add(7, ["b2"], copy_missing)
        await until(lambda: not answers, "what was not copied is not tried again", 10.0)
        await until(lambda: 7 not in lagging, "a whole ledger lags on")
        assert asked == [["b2"]] * 3
