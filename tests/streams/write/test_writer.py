"""Writing on a real cluster: offsets, batches, rolls, idempotence, atomic batches, limits, the end."""

from __future__ import annotations

import asyncio

import pytest
from tests.streams.kit import append_on
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.config import ClientConfig
from buckram.core.streams.records.batch import Record
from buckram.errors import (
    BufferFull,
    HandleClosed,
    InvalidArgument,
    NoSuchNamespace,
    OffsetMismatch,
    OutOfOrderSequence,
    ProducerForgotten,
    RecordTooLarge,
    StreamEnded,
    TxidOutOfOrder,
    WriterLost,
)
from buckram.namespace import Namespace
from buckram.testing import Cluster


async def everything(ns: Namespace, stream: str) -> list[Record]:
    return [record async for record in ns.read(stream)]


async def values(ns: Namespace, stream: str) -> list[bytes | None]:
    return [record.value for record in await everything(ns, stream)]


async def ledgers(client: Client) -> list[int]:
    return [ledger async for ledger in client.list()]


async def test_the_shortest_program(ns: Namespace) -> None:
    async with ns.writer("orders") as w:
        assert await w.append(b"one") == 0
    assert [(r.offset, r.value) async for r in ns.read("orders")] == [(0, b"one")]


async def test_a_record_with_every_field(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        await w.append(b"v", key=b"k", headers={"a": b"1", "b": b""}, timestamp=-5, txid=7, producer="p", sequence=0)
        await w.append(None, key=b"")
        await w.append(bytearray(b""), headers=[("x", b"y"), ("x", b"z")], txid=7)
    first, second, third = await everything(ns, "s")
    assert first[:5] == (0, b"v", b"k", (("a", b"1"), ("b", b"")), -5)
    assert first[6:] == (7, "p", 0)
    assert (second.value, second.key, second.txid) == (None, b"", None)
    assert second.timestamp == second.append_time
    assert (third.value, third.headers) == (b"", (("x", b"y"), ("x", b"z")))
    assert first.append_time <= second.append_time <= third.append_time


async def test_offsets_follow_the_order_of_calls_of_all_kinds(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        futures = [w.append_nowait(b"%d" % i) for i in range(100)]
        many = asyncio.create_task(w.append_many([b"%d" % i for i in range(100, 150)], keys=[b"k"] * 50))
        await asyncio.sleep(0)
        futures += [w.append_nowait(b"%d" % i) for i in range(150, 200)]
        one = asyncio.create_task(w.append(b"200", key=b"z"))
        assert await many == range(100, 150)
        assert await asyncio.gather(*futures) == [*range(100), *range(150, 200)]
        assert await one == 200
        assert w.next_offset == w.acknowledged == 201
        assert await w.append_many([]) == range(201, 201)
    assert await values(ns, "s") == [b"%d" % i for i in range(201)]


async def test_large_appends_are_cut_and_stay_in_order(ns: Namespace) -> None:
    rows = [bytes([i % 256]) * (i * 37 % 9000) for i in range(2000)]
    async with ns.writer("s") as w:
        first, second = await asyncio.gather(w.append_many(rows), w.append_many(rows[:7]))
    assert (first, second) == (range(2000), range(2000, 2007))
    assert await values(ns, "s") == rows + rows[:7]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
async def test_compressed_streams(ns: Namespace, codec: str) -> None:
    await ns.create("s", compression=codec)
    rows = [b"the same again and again %d" % (i % 10) for i in range(5000)]
    async with ns.writer("s") as w:
        await w.append_many(rows)
    assert await values(ns, "s") == rows
    (row,) = [s async for s in ns.segments("s")]
    assert row.summary is not None
    assert row.summary.bytes < 40_000


async def test_a_roll_by_call_and_by_size(ns: Namespace) -> None:
    await ns.create("s", roll_bytes=8192)
    async with ns.writer("s") as w:
        assert not await w.roll(), "an empty segment is never left behind"
        for _ in range(20):
            await w.append_many([b"x" * 100] * 20)
        await w.append(b"end")
        assert await w.roll()
        assert not await w.roll()
    rows = [s async for s in ns.segments("s")]
    assert len(rows) > 4
    assert all(row.summary and row.summary.records for row in rows)
    assert [r.offset for r in await everything(ns, "s")] == list(range(401))


async def test_a_roll_by_time(ns: Namespace) -> None:
    await ns.create("s", roll_s=0.2)
    async with ns.writer("s") as w:
        async with asyncio.timeout(10):
            while len([s async for s in ns.segments("s")]) < 3:
                await w.append(b"x")
        n = w.next_offset
    assert len(await everything(ns, "s")) == n


async def test_rolling_without_stopping_appends(ns: Namespace, client: Client) -> None:
    async with ns.writer("s") as w:
        done = 0

        async def roll() -> None:
            for _ in range(10):
                await w.roll()

        rolling = asyncio.create_task(roll())
        while not rolling.done():
            await w.append_many([b"%d" % (done + i) for i in range(10)])
            done += 10
    assert await values(ns, "s") == [b"%d" % i for i in range(done)]
    rows = [s async for s in ns.segments("s")]
    assert len(rows) >= 10
    assert sorted(await ledgers(client)) == sorted(row.ledger for row in rows), "no ledger is left behind"


async def test_a_writer_without_appends_leaves_no_ledger(ns: Namespace, client: Client) -> None:
    async with ns.writer("s"):
        pass
    assert [s async for s in ns.segments("s")] == []
    assert await ledgers(client) == []
    assert (await ns.info("s")).writer is None


async def test_a_retry_is_stored_once(ns: Namespace) -> None:
    await ns.create("s", roll_bytes=4096)
    async with ns.writer("s") as w:
        assert await w.append(b"a", producer="p", sequence=0) == 0
        assert await w.append(b"a", producer="p", sequence=0) == 0
        assert await w.append_many([b"b", b"c"], producer="p", sequence=1) == range(1, 3)
        assert await w.append_many([b"b", b"c", b"d"], producer="p", sequence=1) == range(3, 4)
        assert await w.append(b"b", producer="p", sequence=1) == -1
        both = await asyncio.gather(*(w.append(b"e", producer="q", sequence=0) for _ in range(5)))
        assert both == [4] * 5
        for _ in range(5):
            await w.append_many([b"x" * 500] * 20)
        assert await w.append(b"d", producer="p", sequence=3) == 3
        with pytest.raises(OutOfOrderSequence, match="begins at sequence 0"):
            await w.append(b"?", producer="unknown", sequence=4)
    async with ns.writer("s") as w:
        assert await w.append(b"e", producer="q", sequence=0) == 4
        assert await w.append(b"f", producer="p", sequence=4) == w.next_offset - 1
    assert (await values(ns, "s")).count(b"d") == 1


async def test_a_sequence_that_was_not_written_is_never_taken_for_a_retry(three_bookies: Cluster) -> None:
    """A sequence that was refused for any reason is missing in what follows, so later ones are refused, too."""
    async with three_bookies.client(ClientConfig(max_pending_bytes=100_000)) as client:
        ns = client.namespace()
        async with ns.writer("s") as w:
            assert await w.append(b"0", producer="p", sequence=0) == 0
            with pytest.raises(OutOfOrderSequence, match="sequence 2, the next one is 1"):
                await w.append(b"2", producer="p", sequence=2)
            assert await w.append(b"1", producer="p", sequence=1) == 1
            # Appends are refused for want of room and for their size, and one is cancelled while it waits for room.
            w.append_nowait(b"x" * 100_000)
            with pytest.raises(BufferFull):
                w.append_nowait(b"2", producer="p", sequence=2)
            late = w.append(b"3", producer="p", sequence=3)
            with pytest.raises(OutOfOrderSequence):
                await late
            with pytest.raises(RecordTooLarge):
                await w.append(b"x" * (5 * 1024 * 1024), producer="p", sequence=2)
            await w.flush()
            w.append_nowait(b"y" * 100_000)
            impatient = asyncio.create_task(w.append(b"2", producer="p", sequence=2))
            await asyncio.sleep(0)
            impatient.cancel()
            with pytest.raises(OutOfOrderSequence, match="sequence 3, the next one is 2"):
                await w.append_many([b"3", b"4"], producer="p", sequence=3)
            # These are appended in one turn of the event loop, which makes one batch.
            found = await asyncio.gather(
                *(w.append(b"%d" % n, producer="p", sequence=n) for n in (3, 2, 4, 3)), return_exceptions=True
            )
            assert [type(one) for one in found] == [OutOfOrderSequence, int, OutOfOrderSequence, int]
        assert [value for value in await values(ns, "s") if value and len(value) == 1] == [b"0", b"1", b"2", b"3"]


async def test_a_producer_may_begin_at_the_sequence_that_it_names(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        with pytest.raises(OutOfOrderSequence, match="start=7"):
            await w.append(b"7", producer="p", sequence=7)
        assert await w.append(b"7", producer="p", sequence=7, start=7) == 0
        assert await w.append(b"7", producer="p", sequence=7, start=7) == 0
    async with ns.writer("s") as w:
        with pytest.raises(OutOfOrderSequence, match="began with start=7"):
            await w.append(b"6", producer="p", sequence=6)
        with pytest.raises(OutOfOrderSequence, match="the next one is 8"):
            await w.append(b"20", producer="p", sequence=20, start=20)
        assert await w.append_nowait(b"8", producer="p", sequence=8) == 1
        with pytest.raises(InvalidArgument, match="start 3"):
            await w.append(b"", start=3)
    assert await values(ns, "s") == [b"7", b"8"]


async def test_a_forgotten_producer_gets_an_error(ns: Namespace) -> None:
    await ns.create("s", max_producers=2)
    async with ns.writer("s") as w:
        for name in ("a", "b", "c"):
            await w.append(b"", producer=name, sequence=0)
        with pytest.raises(ProducerForgotten, match="forgotten"):
            await w.append(b"", producer="a", sequence=0)
    async with ns.writer("s") as w:
        with pytest.raises(ProducerForgotten, match="forgotten"):
            await w.append(b"", producer="a", sequence=1)
        assert await w.append(b"", producer="c", sequence=0) == 2


async def test_bad_arguments_are_refused_before_anything_is_written(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        await w.append(b"0", txid=10)
        with pytest.raises(OffsetMismatch, match="next offset is 1"):
            await w.append(b"", expect_offset=0)
        with pytest.raises(TxidOutOfOrder, match="below the last one, 10"):
            await w.append(b"", txid=9)
        with pytest.raises(TxidOutOfOrder):
            await w.append_many([b""] * 3, txids=[11, 13, 12])
        with pytest.raises(RecordTooLarge, match=r"stream shop/s: a record of 4194305 bytes .* 4194304"):
            await w.append(b"x" * (4 * 1024 * 1024 + 1))
        with pytest.raises(RecordTooLarge, match="atomic"):
            await w.append_many([b"x" * 1024 * 1024] * 6, atomic=True)
        for bad in (
            lambda: w.append("text"),  # type: ignore[arg-type]
            lambda: w.append(b"", key=7),  # type: ignore[arg-type]
            lambda: w.append(b"", headers={"a": "b"}),  # type: ignore[dict-item]
            lambda: w.append(b"", timestamp=1.5),  # type: ignore[arg-type]
            lambda: w.append(b"", txid=-1),
            lambda: w.append(b"", producer="p"),
            lambda: w.append(b"", producer="", sequence=0),
            lambda: w.append(b"", producer="p", sequence=-1),
            lambda: w.append_many(b"abc"),  # type: ignore[arg-type]
            lambda: w.append_many([b""], keys=[]),
        ):
            with pytest.raises(InvalidArgument):
                await bad()
        assert await w.append(b"1", txid=10, expect_offset=1) == 1
        assert await w.append(b"x" * (4 * 1024 * 1024)) == 2
    assert len(await everything(ns, "s")) == 3


async def test_an_atomic_batch_is_one_entry(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        await w.append_many([b"x" * 100_000] * 20, atomic=True)
        await w.append_many([b"y"] * 20_000, atomic=True, expect_offset=20)
    sizes = [len(batch) async for batch in ns.read("s").batches()]
    assert sizes == [20, 20_000]


async def test_memory_is_bounded_and_append_waits(three_bookies: Cluster) -> None:
    async with three_bookies.client(ClientConfig(max_pending_bytes=100_000)) as client:
        ns = client.namespace()
        async with ns.writer("s") as w:
            w.append_nowait(b"x" * 60_000)
            with pytest.raises(BufferFull):
                w.append_nowait(b"x" * 60_000)
            tasks = [asyncio.create_task(w.append(b"%d" % i + b"x" * 60_000)) for i in range(5)]
            await asyncio.sleep(0)
            tasks[2].cancel()
            with pytest.raises(BufferFull):
                w.append_nowait(b"small ones do not overtake those that wait")
            assert w.pending_bytes <= 100_000
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [found[0], found[1], found[3], found[4]] == [1, 2, 3, 4]
            assert await w.append(b"y" * 1_000_000) == 5, "larger than the limit: goes alone"
            assert await w.append_many([b"z" * 1000] * 1000) == range(6, 1006)


async def test_an_ended_stream_takes_no_records_and_ends_readers(ns: Namespace) -> None:
    w = await ns.writer("s")
    await w.append_many([b"1", b"2"])
    tail = ns.read("s", follow=True)
    assert [(await anext(tail)).offset for _ in range(2)] == [0, 1]
    last = asyncio.create_task(anext(tail, None))
    assert await w.end() == 2
    assert await last is None
    with pytest.raises(StreamEnded, match="offset 2"):
        await ns.writer("s")
    with pytest.raises(HandleClosed):
        await w.append(b"")
    assert (await ns.info("s")).ended


async def test_closing_and_abandoning(ns: Namespace, client: Client) -> None:
    w = await ns.writer("s")
    future = w.append_nowait(b"1")
    await asyncio.gather(w.close(), w.close())
    assert future.result() == 0
    await w.close()
    with pytest.raises(HandleClosed):
        w.append_nowait(b"2")
    w = await ns.writer("s")
    await w.append(b"2")
    hanging = w.append_nowait(b"3")
    await w.abandon()
    with pytest.raises(HandleClosed):
        await hanging
    assert not w.lost.is_set()
    async with ns.writer("s") as w:
        assert w.next_offset in (2, 3)
    assert (await values(ns, "s"))[:2] == [b"1", b"2"]


async def test_closing_a_client_ends_its_writers(three_bookies: Cluster, ns: Namespace) -> None:
    async with three_bookies.client() as other:
        w = await other.namespace("shop").writer("s")
        await w.append(b"1")
    assert w.closed
    async with asyncio.timeout(10), ns.writer("s", wait=True) as again:
        assert again.next_offset == 1


async def test_a_writer_is_lost_when_its_stream_is_deleted(ns: Namespace, client: Client) -> None:
    w = await ns.writer("s")
    await w.append_many([b"x"] * 10)
    await ns.delete("s")
    with pytest.raises(WriterLost):
        await append_on(w)
    assert w.lost.is_set()
    await w.close()
    assert not await ns.exists("s")

    async def all_gone() -> bool:
        return not await ledgers(client)

    await eventually(all_gone)
    async with ns.writer("s") as w:
        assert w.next_offset == 0


async def test_namespaces_and_names(ns: Namespace, client: Client) -> None:
    with pytest.raises(NoSuchNamespace, match="namespace nowhere"):
        await client.namespace("nowhere").create("s")
    with pytest.raises(InvalidArgument, match="separator"):
        ns.writer("shop/a/b")
    with pytest.raises(InvalidArgument, match="bare name"):
        ns.read("other/s")
    for name in ("b", "a", "ab", "abc", "b/x"[:1] + "2"):
        await ns.create(name)
    assert await ns.list() == ["a", "ab", "abc", "b", "b2"]
    assert await ns.list(prefix="ab") == ["ab", "abc"]
    assert await ns.list(limit=2, after="ab") == ["abc", "b"]
    assert await ns.exists("shop/a")
    assert not await ns.exists("shop/z")
    await client.namespaces.set("shop", roll_bytes=9999)
    assert (await ns.set_policy("a", roll_s=5.0)).policy.roll_bytes == 9999
    assert (await ns.set_policy("a", roll_s=None)).overrides == {}
    info = await ns.set_properties("a", {"owner": "me"})
    assert info.properties == {"owner": "me"}
    assert (await ns.set_properties("a", {"owner": None})).properties == {}
