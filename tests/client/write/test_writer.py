"""Writers against scripted bookies on loopback: ids, acknowledgements, limits."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.polling import until
from tests.support.scripted_bookie import NET, scripted

from buckram.config import ClientConfig
from buckram.core.entries.entry import Digest
from buckram.errors import (
    BufferFull,
    EntryTooLarge,
    InvalidArgument,
)
from buckram.types import DigestType, LedgerState


async def test_appends_are_numbered_stored_everywhere_and_sealed() -> None:
    async with scripted() as (cluster, client):
        async with client.create(password="secret", custom_metadata={"k": "v"}) as writer:
            assert await writer.append(b"zero") == 0
            assert await writer.append_many([b"one", bytearray(b"two"), memoryview(b"three")]) == range(1, 4)
            future = writer.append_nowait(b"")
            assert await future == 4
            assert (writer.last_confirmed, writer.last_pushed, writer.length) == (4, 4, 15)
            assert writer.metadata.state is LedgerState.OPEN
        stored = cluster["b1"].entries[writer.ledger_id]
        digest = Digest(DigestType.CRC32C, b"secret")
        entries = [digest.open(writer.ledger_id, i, stored[i]) for i in range(5)]
        assert [e.payload for e in entries] == [b"zero", b"one", b"two", b"three", b""]
        assert [e.length for e in entries] == [4, 7, 10, 15, 15]
        assert [e.last_add_confirmed for e in entries] == [-1, 0, 0, 0, 3]
        metadata = (await cluster.store.read_ledger(writer.ledger_id)).metadata
        assert (metadata.state, metadata.last_entry, metadata.length) == (LedgerState.CLOSED, 4, 15)
        assert (metadata.digest_type, metadata.custom_metadata["k"]) == (DigestType.CRC32C, b"v")


async def test_one_turn_is_one_run() -> None:
    """What many tasks append in one turn of the loop carries one LAC and arrives in call order."""
    async with scripted() as (cluster, client), client.create() as writer:
        ids = await asyncio.gather(*(writer.append(bytes([i])) for i in range(50)))
        assert ids == list(range(50))
        stored = cluster["b0"].entries[writer.ledger_id]
        assert [Digest(DigestType.CRC32C, b"").open(writer.ledger_id, i, stored[i]).payload for i in range(50)] == [
            bytes([i]) for i in range(50)
        ]


async def test_acknowledged_by_qa_and_in_order() -> None:
    async with scripted() as (cluster, client), client.create() as writer:
        for name in ("b1", "b2"):
            cluster[name].held = []
        first = writer.append_nowait(b"a")
        await until(lambda: all(len(cluster[n].held or ()) == 1 for n in ("b1", "b2")), "first run arrived")
        second = writer.append_nowait(b"b")
        await until(lambda: len(cluster["b1"].held or ()) == 2, "second run arrived")
        assert not first.done()
        assert not second.done()
        cluster["b1"].release(1, 0)  # answers in the wrong order
        assert await second == 1
        assert first.done()
        assert writer.last_confirmed == 1
        cluster["b2"].release()


@pytest.mark.parametrize("shape", ["1/1/1", "5/3/2", "4/2/1", "5/5/3", "3/2/2"])
async def test_striping_gives_each_entry_its_write_set(shape: str) -> None:
    async with scripted(5) as (cluster, client), client.create(ensemble=shape) as writer:
        e, w, _ = map(int, shape.split("/"))
        await writer.append_many([b"x%d" % i for i in range(23)])
        for i in range(3):
            await writer.append(b"y%d" % i)
        members = writer.metadata.last_fragment.ensemble
        want = {entry: sorted(members[(entry + i) % e] for i in range(w)) for entry in range(26)}
        await until(
            lambda: {entry: cluster.holders(writer.ledger_id, entry) for entry in range(26)} == want, "all copies"
        )


async def test_v3_wire() -> None:
    async with scripted(config=ClientConfig(wire_protocol=3)) as (cluster, client), client.create() as writer:
        await writer.append_many([b"a", b"b"])
        await until(lambda: all(b.ids(writer.ledger_id) == [0, 1] for b in cluster.bookies.values()), "stored")


# -- limits ---------------------------------------------------------------------------------------------------


async def test_too_large_and_wrong_types_are_refused_before_anything_is_sent() -> None:
    async with scripted() as (cluster, client), client.create() as writer:
        limit = NET.max_frame_bytes - 256
        with pytest.raises(EntryTooLarge, match=str(limit)):
            await writer.append(bytes(limit + 1))
        with pytest.raises(EntryTooLarge):
            await writer.append_many([b"fine", bytes(limit + 1)])
        for wrong in ("text", None, 7):
            with pytest.raises(InvalidArgument, match="bytes"):
                await writer.append(wrong)  # type: ignore[arg-type]  # the point of the test
        with pytest.raises(InvalidArgument, match="append_many"):
            await writer.append_many(b"one payload")  # type: ignore[arg-type]  # the point of the test
        with pytest.raises(InvalidArgument, match="explicit_ids"):
            await writer.append(b"x", entry_id=3)
        assert await writer.append_many([]) == range(0)
        assert await writer.append(bytes(limit)) == 0
        await until(lambda: all(b.ids(writer.ledger_id) == [0] for b in cluster.bookies.values()), "stored")


async def test_appends_wait_in_call_order_and_cancelled_ones_leave_no_gap() -> None:
    config = ClientConfig(max_pending_bytes=100, max_pending_entries=1000)
    async with scripted(config=config) as (cluster, client), client.create(ensemble=1) as writer:
        bookie = cluster[writer.metadata.last_fragment.ensemble[0]]
        bookie.held = []
        assert isinstance(writer.append_nowait(bytes(90)), asyncio.Future)
        with pytest.raises(BufferFull, match="limit is 100") as full:
            writer.append_nowait(bytes(20))
        assert full.value.retryable
        tasks = [asyncio.ensure_future(writer.append(bytes(60))) for _ in range(4)]
        big = asyncio.ensure_future(writer.append_many([bytes(50)] * 7))
        huge = asyncio.ensure_future(writer.append(bytes(500)))
        await asyncio.sleep(0)
        with pytest.raises(BufferFull):
            writer.append_nowait(b"")  # nobody overtakes those that wait
        tasks[1].cancel()
        flush = asyncio.ensure_future(writer.flush())
        await asyncio.sleep(0)
        assert writer.last_pushed == 0
        while not flush.done():
            assert writer.pending_bytes <= 100 or writer.pending_entries == 1
            await until(lambda: bool(bookie.held) or flush.done(), "more arrived")
            bookie.release()
            bookie.held = []
            await asyncio.sleep(0)
        bookie.held = None
        assert [task.result() for task in (tasks[0], tasks[2], tasks[3])] == [1, 2, 3]
        assert big.result() == range(4, 11)
        assert huge.result() == 11


async def test_entries_are_limited_too() -> None:
    config = ClientConfig(max_pending_entries=3)
    async with scripted(config=config) as (_, client), client.create() as writer:
        for _ in range(3):
            writer.append_nowait(b"x")
        with pytest.raises(BufferFull, match="3 entries"):
            writer.append_nowait(b"x")
        assert await writer.append(b"waits") == 3


async def test_cancelling_an_append_abandons_the_wait_not_the_write() -> None:
    async with scripted() as (cluster, client), client.create() as writer:
        task = asyncio.ensure_future(writer.append(b"kept"))
        await asyncio.sleep(0)
        task.cancel()
        assert await writer.append(b"next") == 1
        await until(lambda: cluster["b0"].ids(writer.ledger_id) == [0, 1], "both stored")


async def test_bookie_that_reads_nothing_makes_appends_wait() -> None:
    config = ClientConfig(max_pending_bytes=64 * 1024)
    async with scripted(config=config) as (cluster, client), client.create() as writer:
        slow = cluster["b2"]
        await writer.append(b"connected")
        await until(lambda: slow.ids(writer.ledger_id) == [0], "connected")
        for transport in slow._transports:
            transport.pause_reading()
        pool = client.services.pool
        peak = 0
        with pytest.raises(BufferFull, match="slow"):  # noqa: PT012
            for _ in range(100_000):
                await writer.append(bytes(32 * 1024))
                writer.append_nowait(b"")
                peak = max(peak, pool.pending_bytes("b2"))
        assert peak < 2 * 4 * config.max_pending_bytes
        assert writer.pending_bytes == 0, "it waits for the slow one although the others acknowledged"
        assert await writer.append(b"after the timeout of the slow one") > 0
        assert writer.degraded
