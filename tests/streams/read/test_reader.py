"""Reading: starts and stops, following across rolls, truncation and take-over, seeking, views and Arrow."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.streams.kit import read_on
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.core.streams.metadata.head import encode_head
from buckram.core.streams.names import StreamName, stream_name
from buckram.core.streams.records.batch import decode
from buckram.core.streams.records.record_format import Columns, encode
from buckram.errors import (
    CorruptEntry,
    HandleClosed,
    InvalidArgument,
    NoSuchStream,
    OffsetOutOfRange,
    OffsetTruncated,
)
from buckram.namespace import Namespace
from buckram.streams.read.reader import StreamReader
from buckram.streams.shared.arrow_batches import schema, to_arrow
from buckram.streams.shared.ledgers import make_ledger
from buckram.streams.shared.metadata import HeadAt, StreamStore
from buckram.testing import Cluster


async def fill(ns: Namespace, rolls: int = 3, each: int = 50) -> list[int]:
    """Write several segments, the last of which is open, with value i at offset i; returns append times by offset."""
    w = await ns.writer("s")
    for _ in range(rolls):
        for _ in range(each // 10):
            at = w.next_offset
            await w.append_many([b"%d" % i for i in range(at, at + 10)], txids=[2 * i for i in range(at, at + 10)])
        await w.roll()
    at = w.next_offset
    await w.append_many([b"%d" % i for i in range(at, at + 10)], txids=[2 * i for i in range(at, at + 10)])

    async def readable() -> bool:
        return (await ns.info("s")).end == w.next_offset

    await eventually(readable)
    return [record.append_time async for record in ns.read("s")]


async def offsets(reader: StreamReader) -> list[int]:
    found = [(record.offset, record.value) async for record in reader]
    assert all(value == b"%d" % offset for offset, value in found)
    return [offset for offset, _ in found]


async def test_every_start_and_stop(ns: Namespace) -> None:
    await fill(ns)
    assert await offsets(ns.read("s")) == list(range(160))
    for start in (0, 1, 9, 10, 49, 50, 51, 99, 100, 149, 150, 155, 159, 160):
        assert await offsets(ns.read("s", start=start)) == list(range(start, 160))
        assert await offsets(ns.read("s", start=start, stop=start + 7)) == list(range(start, min(start + 7, 160)))
    assert await offsets(ns.read("s", start="latest")) == []
    assert await offsets(ns.read("s", start=5, stop=5)) == []
    assert await offsets(ns.read("s", stop="latest", follow=True)) == list(range(160))
    with pytest.raises(OffsetOutOfRange, match="earliest is 0, the next to be written is 160"):
        await offsets(ns.read("s", start=161))


@pytest.mark.parametrize("look", ["read", "info", "cursors"])
async def test_the_last_segment_may_go_meanwhile(ns: Namespace, monkeypatch: pytest.MonkeyPatch, look: str) -> None:
    """An open segment without records is deleted when its writer closes, also between a look at the list and one at
    the ledger that it names."""
    writer = await ns.writer("s")
    await writer.append(b"0")
    await writer.roll()
    read, closed = StreamStore.read, list[int]()

    async def and_then_it_closes(self: StreamStore, name: StreamName, **more: float) -> HeadAt:
        found = await read(self, name, **more)
        if not closed:
            closed.append(found.version)
            await writer.close()
        return found

    monkeypatch.setattr(StreamStore, "read", and_then_it_closes)
    if look == "read":
        assert await offsets(ns.read("s")) == [0]
    elif look == "info":
        assert (await ns.info("s")).end == 1
    else:
        assert await ns.cursors("s") == []
    assert closed


async def test_seeking_by_time_and_txid_is_exact(ns: Namespace) -> None:
    times = await fill(ns)
    for offset in range(0, 160, 7):
        first = times.index(times[offset])
        assert await offsets(ns.read("s", start_time=times[offset], stop=160)) == list(range(first, 160))
        after = next((i for i, t in enumerate(times) if t > times[offset]), 160)
        assert await offsets(ns.read("s", start_time=times[offset] + 1)) == list(range(after, 160))
        assert await offsets(ns.read("s", stop_time=times[offset])) == list(range(first))
        assert await offsets(ns.read("s", start_txid=2 * offset)) == list(range(offset, 160))
        assert await offsets(ns.read("s", start_txid=2 * offset + 1)) == list(range(offset + 1, 160))
    day = datetime.fromtimestamp(0, UTC)
    assert len(await offsets(ns.read("s", start_time=day))) == 160
    assert await offsets(ns.read("s", start_time=times[-1] + 10**9)) == []


async def test_get_and_seek(ns: Namespace) -> None:
    await fill(ns)
    for offset in (0, 77, 159):
        assert (await ns.get("s", offset)).value == b"%d" % offset
    with pytest.raises(OffsetOutOfRange, match="160"):
        await ns.get("s", 160)
    async with ns.read("s") as reader:
        assert (await anext(reader)).offset == 0
        await reader.seek(120)
        assert (await anext(reader)).offset == 120
        assert reader.position == 121
        batch = await reader.next_batch()
        assert batch is not None
        assert batch.first_offset == 121, "the rest of the batch that was begun"


async def test_following_over_rolls_and_the_end(ns: Namespace) -> None:
    w = await ns.writer("s")
    seen: list[int] = []

    async def follow() -> None:
        async for record in ns.read("s", follow=True):
            seen.append(record.offset)

    readers = [asyncio.create_task(follow()) for _ in range(3)]
    for i in range(60):
        await w.append_many([b"x"] * 5)
        if i % 10 == 9:
            await w.roll()
    await w.end()
    async with asyncio.timeout(10):
        await asyncio.gather(*readers)
    assert sorted(seen) == sorted(list(range(300)) * 3)


async def test_an_acknowledged_record_is_readable_within_20_ms(ns: Namespace) -> None:
    """This also holds when the writer is idle, after a roll and when it closes."""
    loop = asyncio.get_running_loop()
    w = await ns.writer("s")
    await w.append(b"")
    reader = ns.read("s", follow=True)
    await anext(reader)
    late: list[float] = []
    for i in range(30):
        if i % 5 == 4:
            await w.roll()
        waiting = asyncio.create_task(reader.__anext__())
        await asyncio.sleep(0)
        await w.append(b"%d" % i)
        acked = loop.time()
        await waiting
        late.append(loop.time() - acked)
    waiting = asyncio.create_task(reader.__anext__())
    await w.append(b"")
    await w.close()
    acked = loop.time()
    await waiting
    late.append(loop.time() - acked)
    await reader.close()
    # The machine may be busy, so the bound is generous, and the median must be well below it.
    assert sorted(late)[len(late) // 2] < 0.03
    assert max(late) < 0.5


async def test_following_a_take_over(ns: Namespace, three_bookies: Cluster) -> None:
    reader = ns.read("s", follow=True)
    async with three_bookies.client() as other:
        old = await other.namespace("shop").writer("s")
        await old.append_many([b"%d" % i for i in range(10)])
        assert [(await anext(reader)).offset for _ in range(10)] == list(range(10))
        async with ns.writer("s", takeover=True) as new:
            await new.append(b"10")
            async with asyncio.timeout(10):
                assert (await anext(reader))[:2] == (10, b"10")
    await reader.close()


async def test_truncation_under_a_reader(ns: Namespace, client: Client) -> None:
    await fill(ns)
    reader, skipping = ns.read("s", follow=True), ns.read("s", follow=True, on_truncated="skip")
    assert (await anext(reader)).offset == (await anext(skipping)).offset == 0
    assert await ns.truncate("s", before=123) == 123
    assert [row.number async for row in ns.segments("s")] == [2, 3]
    with pytest.raises(OffsetTruncated, match="earliest is now 123"):
        await read_on(reader)
    async with asyncio.timeout(10):
        while (record := await anext(skipping)).offset < 123:
            pass
    assert record.offset == 123
    await reader.close()
    await skipping.close()
    with pytest.raises(OffsetTruncated):
        await offsets(ns.read("s", start=100))
    assert await offsets(ns.read("s", start=100, on_truncated="skip")) == list(range(123, 160))
    assert await offsets(ns.read("s")) == list(range(123, 160))
    with pytest.raises(OffsetTruncated):
        await ns.get("s", 122)


async def test_truncation_by_offset_time_and_size(ns: Namespace, client: Client) -> None:
    times = await fill(ns)
    assert await ns.truncate("s", before_time=times[60]) == times.index(times[60])
    assert await ns.truncate("s", before=30) == 60, "never down"
    assert await ns.truncate("s", keep_bytes=0) == 150, "all sealed segments"
    assert await ns.truncate("s", before=155) == 155, "exact, also in the segment that is written"
    assert await offsets(ns.read("s")) == list(range(155, 160))
    assert len([ledger async for ledger in client.list()]) == 1 + 0, "space follows by whole segments"
    with pytest.raises(OffsetOutOfRange, match="earliest is 155"):
        await ns.truncate("s", before=161)
    with pytest.raises(InvalidArgument, match="exactly one"):
        await ns.truncate("s")


async def test_a_follower_ends_when_its_stream_is_deleted(ns: Namespace) -> None:
    with pytest.raises(NoSuchStream, match="shop/s"):
        await anext(ns.read("s"))
    await ns.create("s")
    reader = ns.read("s", follow=True)
    waiting = asyncio.create_task(reader.__anext__())
    await asyncio.sleep(0)
    await ns.delete("s")
    with pytest.raises(NoSuchStream):
        async with asyncio.timeout(10):
            await waiting
    await reader.close()


async def test_a_stream_of_the_same_name_is_not_read_for_a_deleted_one(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        await w.append_many([b"old"] * 5)
    reader = ns.read("s", follow=True)
    await anext(reader)
    await ns.delete("s")
    async with ns.writer("s") as w:
        assert w.next_offset == 0
        await w.append(b"new")
    with pytest.raises(NoSuchStream):
        await read_on(reader, b"old")
    assert [r.value async for r in ns.read("s")] == [b"new"]
    await reader.close()


async def test_arrow_is_equal_to_the_records(ns: Namespace) -> None:
    pytest.importorskip("pyarrow")
    async with ns.writer("s") as w:
        await w.append_many([b"a", None, b""], keys=[None, b"k", b""], headers=[{"h": b"1", "i": b""}, None, {}],
                            timestamps=[5, None, -7], txids=[None, 3, 4])  # fmt: skip
        await w.append_many([b"plain"] * 5)
    records = [record async for record in ns.read("s", start=1)]
    rows = []
    async for batch in ns.read("s", start=1).arrow_batches():
        batch.validate(full=True)
        assert batch.schema == schema()
        rows += batch.to_pylist()
    assert len(rows) == len(records) == 7
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for row, record in zip(rows, records, strict=True):
        assert (row["offset"], row["value"], row["key"], row["txid"]) == (
            record.offset, record.value, record.key, record.txid,
        )  # fmt: skip
        assert [(h["key"], h["value"]) for h in row["headers"] or []] == list(record.headers)
        micros = [round((row[name] - epoch).total_seconds() * 1e6) for name in ("timestamp", "append_time")]
        assert abs(micros[0] - record.timestamp) < 2
        assert abs(micros[1] - record.append_time) < 2


async def test_an_entry_that_is_no_batch_is_named(ns: Namespace, client: Client) -> None:
    """The entry has a good digest, but no stream writer made it."""
    info = await ns.create("s")
    name = stream_name("s", "shop")
    step = await ns.bulk("s", application="a", version=1)
    ledger = await step.create_ledger()
    await ledger.append_many([b"good"])
    other, _ = await make_ledger(client, ns.store, name, info.uid, info.policy, epoch=0)
    await other.append(b"x" * 100)
    await other.close()
    await step.publish([await ledger.close()])
    head = (await ns.store.read(name)).head
    row = head.tail[0]
    bad = replace(row, ledger=other.ledger_id)
    key = ns.store.layout.head(name)
    at = await ns.store.keys.get(key)
    await ns.store.keys.set(key, encode_head(replace(head, tail=(bad,))), at.version)
    with pytest.raises(CorruptEntry, match=rf"ledger {other.ledger_id} entry 0: .*not written as a stream"):
        await offsets(ns.read("s"))


async def test_bad_arguments_and_closing(ns: Namespace) -> None:
    for bad in (
        {"start": -1}, {"start": "first"}, {"stop": "end"}, {"start": 1, "start_time": 5}, {"start_txid": -1},
        {"on_truncated": "what"}, {"start_time": datetime(2020, 1, 1)}, {"start": True}, {"stop": -2},
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            ns.read("s", **bad)  # type: ignore[arg-type]
    await ns.create("s")
    reader = ns.read("s", follow=True)
    await reader.open()
    await reader.close()
    with pytest.raises(HandleClosed):
        await reader.open()


async def test_many_readers_share_nothing_with_the_writer(ns: Namespace) -> None:
    await fill(ns)
    found = await asyncio.gather(*(offsets(ns.read("s", start=i)) for i in range(20)))
    assert [rows[0] for rows in found] == list(range(20))


@pytest.mark.parametrize("first", [0, 65_530, 65_536, 131_071, 2**40 - 3])
@pytest.mark.parametrize("count", [1, 10, 65_536, 140_000])
def test_offsets_of_record_batches_count_up(first: int, count: int) -> None:
    entry, _ = encode(Columns([b""] * count), first=0, append_time=1)
    found = to_arrow(decode(entry, first)).column("offset")  # type: ignore[arg-type]
    assert found.to_pylist() == list(range(first, first + count))
