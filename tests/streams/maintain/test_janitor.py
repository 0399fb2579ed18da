"""The janitor: it removes what crashes left, spares live writers, and may crash at every request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from tests.support.clock import pass_time
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.config import ClientConfig
from buckram.core.streams.metadata.changes import deleted
from buckram.core.streams.names import owner_of, stream_name
from buckram.errors import MetadataUnavailable, NoSuchKey, NoSuchNamespace, StreamError
from buckram.namespace import Namespace
from buckram.runtime.process.retry import Retries
from buckram.seams import KeyStore, Notify
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.janitor_report import JanitorReport
from buckram.streams.maintain.orphans import find_orphans
from buckram.streams.shared.ledgers import make_ledger
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.namespaces import Namespaces
from buckram.streams.write.writer import engine_of
from buckram.testing import Cluster
from buckram.types import KeyOp, KeyValue


async def clean(client: Client, **settings: Any) -> JanitorReport:
    return await Janitor(client, JanitorSettings(**{"grace_s": 0, **settings})).clean()


async def ledgers(client: Client) -> list[int]:
    return [ledger async for ledger in client.list()]


async def listed(ns: Namespace, *streams: str) -> list[int]:
    return sorted([row.ledger for stream in streams for row in [r async for r in ns.segments(stream)]])


async def prepared(client: Client, ns: Namespace, stream: str, *, epoch: int, purpose: str = "segment") -> int:
    """Make a ledger that is in no list, as a crashed writer of that epoch would leave it."""
    info = await ns.info(stream)
    writer, _ = await make_ledger(
        client, ns.store, stream_name(stream, ns.name), info.uid, info.policy, epoch=epoch, purpose=purpose
    )
    await writer.abandon()
    return writer.ledger_id


async def test_a_crashed_writer_leaves_nothing_but_its_segment(client: Client, ns: Namespace) -> None:
    writer = await ns.writer("s")
    await writer.append(b"x")
    mine = await prepared(client, ns, "s", epoch=writer.epoch)
    older = await prepared(client, ns, "s", epoch=writer.epoch - 1)
    report = await clean(client)
    assert report.discarded_ledgers == 1  # It is the older writer's; the present writer is alive.
    assert mine in await ledgers(client)
    assert older not in await ledgers(client)
    await writer.abandon()
    assert (await clean(client)).discarded_ledgers == 1
    assert await ledgers(client) == await listed(ns, "s")
    async with ns.writer("s") as writer:
        assert writer.next_offset == 1


async def test_a_writer_that_returns_before_the_second_check_keeps_its_ledger(client: Client, ns: Namespace) -> None:
    writer = await ns.writer("s")
    await writer.abandon()
    await clean(client)
    ledger = await prepared(client, ns, "s", epoch=writer.epoch)
    lease = ns.store.layout.lease((await ns.info("s")).uid)
    looks = 0

    class Late(Janitor):
        """Its lease is away at the first check only."""

        async def _check_again(self, *found: Any) -> None:
            nonlocal looks
            looks += len(found[0])
            await ns.store.keys.create(lease, b"", ephemeral=True)
            await super()._check_again(*found)

    assert (await Late(client, JanitorSettings(grace_s=0)).clean()).discarded_ledgers == 0
    assert looks == 1
    assert await ledgers(client) == [ledger]
    await ns.store.keys.delete(lease, 0)
    assert (await clean(client)).discarded_ledgers == 1


async def test_garbage_ledgers_are_deleted(client: Client, ns: Namespace) -> None:
    """A segment without records of a dead writer leaves the list, and its ledger is deleted later."""
    writer = await ns.writer("s")
    await writer.append(b"x")
    await writer.roll()
    await writer.abandon()
    async with ns.writer("s"):
        pass
    await clean(client)
    assert await ledgers(client) == await listed(ns, "s")
    assert (await ns.store.read(stream_name("s", "shop"))).head.garbage == ()


async def test_a_deletion_that_stopped_half_way_is_completed(client: Client, ns: Namespace) -> None:
    async with ns.writer("s") as writer:
        await writer.append(b"x")
    await ns.move_cursor("s", "c", 1)
    await ns.store.change(stream_name("s", "shop"), partial(deleted, "shop/s"))
    report = await clean(client)
    assert (report.deleted_streams, await ledgers(client), await ns.list()) == (1, [], [])
    assert await ns.store.keys.children(ns.store.layout.all_data) == []


async def test_leftovers_of_a_deleted_stream_are_deleted(client: Client, ns: Namespace) -> None:
    async with ns.writer("s") as writer:
        await writer.append(b"x")
    info = await ns.info("s")
    await ns.delete("s")
    other, _ = await make_ledger(client, ns.store, stream_name("s", "shop"), info.uid, info.policy, epoch=9)
    await other.abandon()
    await clean(client)
    assert await ledgers(client) == []
    assert await ns.store.keys.children(ns.store.layout.all_data) == []


async def test_a_namespace_whose_deletion_stopped_half_way_is_usable_again(client: Client, ns: Namespace) -> None:
    await client.namespaces.create("half")
    spaces = client.namespaces
    key = ns.store.layout.namespace("half")
    await ns.store.keys.set(key, b'{"format":1,"policy":{"roll_s":5.0},"deleting":true}', 0)
    with pytest.raises(NoSuchNamespace):
        await client.namespace("half").create("s")
    await clean(client)
    assert (await spaces.get("half")).policy == {"roll_s": 5.0}
    await client.namespace("half").create("s")


async def test_ledgers_of_decided_bulk_steps_are_discarded(client: Client, ns: Namespace) -> None:
    await ns.create("s")
    bulk = await ns.bulk("s", application="job", version=3)
    ledger = await bulk.create_ledger()
    await ledger.append_many([b"x"])
    sealed = await ledger.close()
    same = await prepared(client, ns, "s", epoch=0, purpose="bulk job 3")  # A speculative task of version 3 made it.
    older = await prepared(client, ns, "s", epoch=0, purpose="bulk job 2")
    newer = await prepared(client, ns, "s", epoch=0, purpose="bulk job 4")
    other = await prepared(client, ns, "s", epoch=0, purpose="bulk other job 0")
    await clean(client)
    assert await ledgers(client) == sorted([sealed.ledger, same, older, newer, other])  # No step is decided yet.
    await bulk.publish([sealed])
    await clean(client)
    assert await ledgers(client) == sorted([sealed.ledger, newer, other])
    assert [r.value async for r in ns.read("s")] == [b"x"]
    await clean(client, bulk_age_s=-1)
    assert await ledgers(client) == [sealed.ledger]


async def test_an_unreadable_stream_is_reported_and_left_alone(client: Client, ns: Namespace) -> None:
    await client.namespaces.set("shop", retention_bytes=0)
    for stream in ("bad", "good"):
        async with ns.writer(stream) as writer:
            await writer.append(b"x")
    await prepared(client, ns, "bad", epoch=0)
    key = ns.store.layout.head(stream_name("bad", "shop"))
    kept = await ns.store.keys.get(key)
    await ns.store.keys.set(key, b"nonsense", kept.version)
    before = await ledgers(client)
    report = await clean(client)
    assert any("bad" in problem for problem in report.problems)
    assert (await ns.info("good")).earliest == 1
    assert len(await ledgers(client)) == len(before) - 1  # Only the ledger of the stream "good" is gone.
    await ns.store.keys.set(key, kept.value, kept.version + 1)
    assert [r.value async for r in ns.read("bad")] == [b"x"]


async def test_run_makes_pass_after_pass(client: Client, ns: Namespace) -> None:
    reports: list[JanitorReport] = []
    enough = asyncio.Event()

    def tell(report: JanitorReport) -> None:
        reports.append(report)
        if len(reports) == 3:
            enough.set()

    task = asyncio.create_task(Janitor(client, JanitorSettings(grace_s=0)).run(0.001, tell))
    await enough.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- a crash at every request -----------------------------------------------------------------------------


class Died(BaseException):
    """The janitor's process has crashed. It is not a BuckramError, so that no code handles it."""


@dataclass
class Mortal:
    """A key store that crashes its client at the nth mutation, before or after carrying it out."""

    inner: KeyStore
    left: int
    done: bool

    async def get(self, key: str, watch: Notify | None = None) -> KeyValue:
        return await self.inner.get(key, watch)

    async def children(
        self, parent: str, *, after: str = "", limit: int = 1000, watch: Notify | None = None
    ) -> list[str]:
        return await self.inner.children(parent, after=after, limit=limit, watch=watch)

    async def children_with_values(
        self, parent: str, *, after: str = "", limit: int = 1000
    ) -> list[tuple[str, KeyValue]]:
        return await self.inner.children_with_values(parent, after=after, limit=limit)

    async def sync(self) -> None:
        await self.inner.sync()

    def _dies(self) -> bool:
        self.left -= 1
        return self.left < 0

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        if self._dies():
            if self.done and not ephemeral:  # Ephemeral keys vanish with the session of the crashed client.
                await self.inner.create(key, value)
            raise Died
        return await self.inner.create(key, value, ephemeral=ephemeral)

    async def set(self, key: str, value: bytes, version: int) -> int:
        if self._dies():
            if self.done:
                await self.inner.set(key, value, version)
            raise Died
        return await self.inner.set(key, value, version)

    async def delete(self, key: str, version: int) -> None:
        if self._dies():
            if self.done:
                await self.inner.delete(key, version)
            raise Died
        await self.inner.delete(key, version)

    async def multi(self, ops: list[KeyOp]) -> None:
        if self._dies():
            if self.done:
                await self.inner.multi(ops)
            raise Died
        await self.inner.multi(ops)


class MortalStore(StreamStore):
    mortal: Mortal

    @property
    def keys(self) -> KeyStore:
        return self.mortal  # type: ignore[return-value]  # A janitor uses no other methods of a key store.


async def ruin(client: Client, ns: Namespace) -> None:
    """Make a namespace with some of everything that a janitor cleans up."""
    for stream in ("aged", "ended", "gone"):
        for n in range(3):
            async with ns.writer(stream) as writer:
                await writer.append_many([b"%d-%d" % (n, k) for k in range(4)])
    await ns.truncate("aged", before=9, trim_now=False)
    await ns.set_policy("ended", retention_bytes=1)
    await prepared(client, ns, "aged", epoch=1)
    await ns.move_cursor("gone", "c", 3)
    await prepared(client, ns, "gone", epoch=5)
    await ns.store.change(stream_name("gone", "shop"), partial(deleted, "shop/gone"))
    writer = await ns.writer("left")
    await writer.append(b"kept")
    await writer.roll()
    await prepared(client, ns, "left", epoch=writer.epoch)
    await writer.abandon()


async def check_clean(client: Client, ns: Namespace) -> None:
    assert await ns.list() == ["aged", "ended", "left"]
    assert await ledgers(client) == await listed(ns, "aged", "ended", "left")
    for ledger in await ledgers(client):
        assert owner_of((await client.metadata(ledger)).custom_metadata) is not None
    assert [r.offset async for r in ns.read("aged")] == [9, 10, 11]
    assert [r.offset async for r in ns.read("ended")] == [8, 9, 10, 11]
    assert [r.value async for r in ns.read("left")] == [b"kept"]
    assert await find_orphans(client, ns.store, in_progress=True) == []
    assert len(await ns.store.keys.children(ns.store.layout.all_data)) == 3


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
async def test_the_janitor_may_crash_at_every_request(
    three_bookies: Cluster, client: Client, ns: Namespace, done: bool
) -> None:
    """Each round crashes one mutation later than the one before, and the next janitor cleans up the rest."""
    step = -1
    while True:
        step += 1
        await ruin(client, ns)
        async with three_bookies.client() as mortal:
            janitor = Janitor(mortal, JanitorSettings(grace_s=0))
            janitor._streams = store = MortalStore(mortal.services.store)
            janitor._namespaces = Namespaces(store)
            store.mortal = Mortal(mortal.services.store.keys, step, done)
            try:
                await janitor.clean()
                survived = True
            except Died:
                survived = False
        report = await clean(client)
        assert report.problems == []
        await check_clean(client, ns)
        for stream in await ns.list():
            await ns.delete(stream)
        if survived:
            break
    assert step > 10


async def test_an_unavailable_store_puts_a_pass_off(client: Client, ns: Namespace) -> None:
    class Away(Mortal):
        def _dies(self) -> bool:
            raise MetadataUnavailable("the store is away")

    async def give_up(_: Retries, error: BaseException) -> None:
        raise error

    await ruin(client, ns)
    janitor = Janitor(client, JanitorSettings(grace_s=0))
    janitor._streams = store = MortalStore(client.services.store)
    store.mortal = Away(client.services.store.keys, 0, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Retries, "wait", give_up)
        report = await janitor.clean()
    assert report.problems
    assert not (await clean(client)).problems
    await check_clean(client, ns)


async def test_a_ledger_discarded_while_it_is_made_is_cleaned_up_by_its_maker(client: Client, ns: Namespace) -> None:
    """Its intent is discarded before its creation arrives; the maker deletes the ledger and raises StreamError."""
    info = await ns.create("s")
    key = ns.store.layout.intents(info.uid)
    real = client.services.store.create_ledger

    async def slow(ledger_id: int, metadata: Any) -> Any:
        for child in await ns.store.keys.children(key):
            await ns.store.keys.delete(f"{key}/{child}", 0)
        return await real(ledger_id, metadata)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client.services.store, "create_ledger", slow)
        with pytest.raises(StreamError, match="discarded while it was made"):
            await prepared(client, ns, "s", epoch=1)
    assert await ledgers(client) == []
    with pytest.raises(NoSuchKey):
        await ns.store.keys.get(f"{key}/0")


async def test_a_stream_whose_writer_died_is_sealed(three_bookies: Cluster, client: Client, ns: Namespace) -> None:
    """Its last records were acknowledged, and become readable by the sealing."""
    await ns.create("s")
    async with three_bookies.client(ClientConfig(idle_lac_ms=0)) as other:
        writer = await other.namespace("shop").writer("s")
        for n in range(50):
            await writer.append(b"%d" % n)
        janitor = Janitor(client, JanitorSettings(grace_s=0, seal_s=0.2))
        for _ in range(3):
            assert (await janitor.clean()).sealed_segments == 0, "a writer that lives is left alone"
            await pass_time(0.1)
        assert not (await ns.info("s")).writer_gone
        await writer.abandon()
    info = await ns.info("s")
    assert info.writer is not None
    assert info.writer_gone
    assert (await janitor.clean()).sealed_segments == 0, "not at the first look"

    async def sealed() -> bool:
        return (await janitor.clean()).sealed_segments == 1

    await eventually(sealed)
    assert [record.offset async for record in ns.read("s")] == list(range(50))
    info = await ns.info("s")
    assert (info.writer, info.writer_gone, info.end) == (None, False, 50)


async def test_a_stream_whose_segment_grows_is_not_sealed(client: Client, ns: Namespace) -> None:
    """The lease is away for longer than a janitor waits, but the writer goes on."""
    writer = await ns.writer("s")
    await writer.append(b"0")
    assert engine_of(writer)._lease is not None
    await engine_of(writer)._lease.close()
    janitor = Janitor(client, JanitorSettings(grace_s=0, seal_s=0.1))
    for _ in range(4):
        assert (await janitor.clean()).sealed_segments == 0
        await writer.append_many([b"x"] * 3)
        await pass_time(0.1)
        await writer.append(b"y")
    await writer.close()


async def test_finish_waits_and_seals_streams_of_dead_writers(
    three_bookies: Cluster, client: Client, ns: Namespace
) -> None:
    """A janitor that cron runs would never seal anything if it ended after one pass."""
    await ns.create("s")
    async with three_bookies.client(ClientConfig(idle_lac_ms=0)) as other:
        writer = await other.namespace("shop").writer("s")
        await writer.append(b"0")
        waited_for: list[int] = []
        assert (
            await Janitor(client, JanitorSettings(grace_s=0, seal_s=0.1)).finish(waited_for.append)
        ).sealed_segments == 0
        assert waited_for == [], "nobody waits for a stream whose writer lives"
        await writer.abandon()
    janitor = Janitor(client, JanitorSettings(grace_s=0, seal_s=0.1))
    assert (await janitor.finish(waited_for.append)).sealed_segments == 1
    assert waited_for == [1]
    assert janitor.undecided == 0
    assert [record.offset async for record in ns.read("s")] == [0]
