"""Bulk steps: closed ledgers become segments exactly once, with and without a live writer."""

from __future__ import annotations

import asyncio

import pytest

from buckram.cluster import Client
from buckram.core.streams.metadata.changes import MAX_BULK_SEGMENTS
from buckram.core.streams.names import stream_name
from buckram.errors import (
    InvalidArgument,
    InvalidSegment,
    NoSuchLedger,
    OpenSegment,
    StaleTransaction,
    StreamError,
    WriterLost,
)
from buckram.namespace import Namespace
from buckram.streams.shared.ledgers import list_intents
from buckram.streams.write.bulk import Bulk, SealedLedger, publish_together

NAME = stream_name("s", "shop")


async def ledger(step: Bulk, *values: bytes) -> SealedLedger:
    made = await step.create_ledger()
    if values:
        await made.append_many(values)
    return await made.close()


async def values(ns: Namespace, stream: str = "s") -> list[bytes | None]:
    records = [record async for record in ns.read(stream)]
    assert [record.offset for record in records] == list(range(len(records)))
    return [record.value for record in records]


async def test_ledgers_become_segments_in_the_order_given(ns: Namespace, client: Client) -> None:
    await ns.create("s")
    step = await ns.bulk("s", application="job", version=1)
    made = await asyncio.gather(*(ledger(step, b"%d.0" % i, b"%d.1" % i) for i in range(5)))
    empty = await ledger(step)
    assert await values(ns) == [], "nothing is there before publish"
    done = await step.publish([made[3], empty, made[0], made[1]])
    assert done[:3] == (1, 0, 6)
    assert await values(ns) == [b"3.0", b"3.1", b"0.0", b"0.1", b"1.0", b"1.1"]
    await step.abort([made[2].ledger, made[4].ledger])
    assert await list_intents(ns.store, step.uid) == []
    listed = [row.ledger async for row in ns.segments("s")]
    assert sorted(listed) == sorted([ledger async for ledger in client.list()])


async def test_publishing_again_gives_the_same_and_writes_nothing(ns: Namespace) -> None:
    await ns.create("s")
    step = await ns.bulk("s", application="job", version=4)
    made = [await ledger(step, b"a", b"b")]
    first = await step.publish(made)
    assert await step.publish(made) == first
    again = await ns.bulk("s", application="job", version=4)
    assert await again.publish([await ledger(again, b"other attempt")]) == first
    assert await again.published() == first
    older = await ns.bulk("s", application="job", version=3)
    with pytest.raises(StaleTransaction, match="version 3 is older than version 4"):
        await older.publish([await ledger(older, b"zombie")])
    both = await asyncio.gather(*(_publish(ns, "x", 1, b"c") for _ in range(4)))
    assert both == [both[0]] * 4
    assert await values(ns) == [b"a", b"b", b"c"]


async def _publish(ns: Namespace, application: str, version: int, *rows: bytes) -> object:
    step = await ns.bulk("s", application=application, version=version)
    return await step.publish([await ledger(step, *rows)])


async def test_publishing_names_a_live_writer_or_seals_its_segment(ns: Namespace) -> None:
    w = await ns.writer("s", name="alice")
    await w.append_many([b"0", b"1"])
    step = await ns.bulk("s", application="job", version=1)
    made = [await ledger(step, b"2", b"3")]
    with pytest.raises(OpenSegment, match="'alice'"):
        await step.publish(made)
    assert (await step.publish(made, seal_live=True))[1:3] == (2, 4)
    with pytest.raises(WriterLost):
        await w.append(b"never")
    assert await step.publish(made) == await step.publish(made, seal_live=True)
    await w.abandon()
    async with ns.writer("s") as w:
        assert await w.append(b"4") == 4
    assert await values(ns) == [b"%d" % i for i in range(5)]


async def test_publishing_names_an_idle_writer_too(ns: Namespace) -> None:
    w = await ns.writer("s", name="idle")
    step = await ns.bulk("s", application="job", version=1)
    made = [await ledger(step, b"0")]
    with pytest.raises(OpenSegment, match="'idle'"):
        await step.publish(made)
    await step.publish(made, seal_live=True)
    with pytest.raises(WriterLost):
        await w.append(b"at a wrong offset")
    with pytest.raises(WriterLost):
        await w.close()
    assert await values(ns) == [b"0"]


async def test_bulk_steps_and_writers_alternate(ns: Namespace) -> None:
    total = 0
    for version in range(4):
        async with ns.writer("s") as w:
            await w.append_many([b"w"] * 3, producer="p", sequence=3 * version)
        step = await ns.bulk("s", application="job", version=version)
        await step.publish([await ledger(step, b"b", b"b")])
        total += 5
    records = [record async for record in ns.read("s")]
    assert len(records) == total
    assert [r.append_time for r in records] == sorted(r.append_time for r in records)
    for offset in range(0, total, 3):
        time = records[offset].append_time
        first = next(r.offset for r in records if r.append_time >= time)
        assert (await anext(ns.read("s", start_time=time))).offset == first
    async with ns.writer("s") as w:
        assert await w.append(b"w", producer="p", sequence=11) == 17


async def test_ledgers_that_cannot_become_segments_are_refused(ns: Namespace, client: Client) -> None:
    await ns.create("s")
    await ns.create("other")
    step = await ns.bulk("s", application="job", version=1)
    foreign = await ns.bulk("other", application="job", version=1)
    theirs = await ledger(foreign, b"x")
    with pytest.raises(InvalidSegment, match="not made for this stream"):
        await step.publish([theirs])
    async with client.create() as plain:
        await plain.append(b"x")
        loose = SealedLedger(plain.ledger_id, 1, 1, 0, 0)
    with pytest.raises(InvalidSegment, match="not made for this stream"):
        await step.publish([loose])
    unfinished = await step.create_ledger()
    await unfinished.append_many([b"x"])
    with pytest.raises(InvalidSegment, match="not closed"):
        await step.publish([SealedLedger(unfinished.ledger_id, 1, 1, 0, 0)])
    good = await ledger(step, b"x")
    with pytest.raises(InvalidSegment, match="holds 1 records, 2 were announced"):
        await step.publish([SealedLedger(good.ledger, 2, good.bytes, 0, 0)])
    await step.abort([good.ledger])
    with pytest.raises(Exception, match="does not exist"):
        await step.publish([good])
    with pytest.raises(InvalidArgument, match=str(MAX_BULK_SEGMENTS)):
        await step.publish([good] * (MAX_BULK_SEGMENTS + 1))
    for version in (-1, True, 1.0):
        with pytest.raises(InvalidArgument):
            await ns.bulk("s", application="job", version=version)  # type: ignore[arg-type]
    assert await values(ns) == []


async def test_a_segment_cannot_be_published_twice(ns: Namespace) -> None:
    await ns.create("s")
    step = await ns.bulk("s", application="job", version=1)
    made = await ledger(step, b"x")
    await step.publish([made])
    with pytest.raises(InvalidSegment, match="published or discarded before"):
        await (await ns.bulk("s", application="job", version=2)).publish([made])
    fresh = await ns.bulk("s", application="job", version=3)
    twice = await ledger(fresh, b"y")
    with pytest.raises(InvalidSegment):
        await fresh.publish([twice, twice])
    assert await values(ns) == [b"x"]


async def _steps(ns: Namespace, version: int) -> list[Bulk]:
    return [await ns.bulk(name, application="job", version=version) for name in ("a", "b", "c")]


async def test_several_streams_are_published_together(ns: Namespace) -> None:
    for name in ("a", "b", "c"):
        await ns.create(name)
    one, two, three = await _steps(ns, 1)
    shares = [
        (one, [await ledger(one, b"a0"), await ledger(one, b"a1")]),
        (two, [await ledger(two, b"b0")]),
        (three, []),
    ]
    done = await publish_together(shares)
    assert [(txn.version, txn.first_offset, txn.next_offset) for txn in done] == [(1, 0, 2), (1, 0, 1), (1, 0, 0)]
    assert await publish_together(shares) == done
    assert [await values(ns, name) for name in ("a", "b", "c")] == [[b"a0", b"a1"], [b"b0"], []]
    # Another attempt of the same step, whose ledgers are too late.
    again = await _steps(ns, 1)
    assert await publish_together([(step, [await ledger(step, b"x")]) for step in again]) == done
    with pytest.raises(InvalidArgument, match="comes twice"):
        await publish_together([(one, []), (one, [])])


async def test_if_one_stream_cannot_be_published_none_is(ns: Namespace) -> None:
    for name in ("a", "b", "c"):
        await ns.create(name)
    shares = [(step, [await ledger(step, step.stream.encode())]) for step in await _steps(ns, 1)]
    alice = await ns.writer("b", name="alice")
    await alice.append(b"live")
    with pytest.raises(OpenSegment, match="'alice'"):
        await publish_together(shares)
    assert [await values(ns, name) for name in ("a", "c")] == [[], []]
    await publish_together(shares, seal_live=True)
    assert [await values(ns, name) for name in ("a", "b", "c")] == [[b"shop/a"], [b"live", b"shop/b"], [b"shop/c"]]
    with pytest.raises(WriterLost):
        await alice.append(b"never")
    await alice.abandon()
    # A ledger of one stream was deleted before it could be listed.
    shares = [(step, [await ledger(step, b"2")]) for step in await _steps(ns, 2)]
    await shares[2][0].abort([shares[2][1][0].ledger])
    with pytest.raises(NoSuchLedger):
        await publish_together(shares)
    assert [(await ns.info(name)).transactions["job"].version for name in ("a", "b", "c")] == [1, 1, 1]


async def test_streams_that_were_published_apart_are_an_error(ns: Namespace) -> None:
    for name in ("a", "b", "c"):
        await ns.create(name)
    one, two, three = await _steps(ns, 1)
    await two.publish([await ledger(two, b"alone")])
    with pytest.raises(StreamError, match="shop/b: and shop/a do not agree"):
        await publish_together([(one, [await ledger(one, b"a")]), (two, []), (three, [])])
    await one.publish([])
    with pytest.raises(StreamError, match="shop/c: and shop/a do not agree"):
        await publish_together([(one, []), (two, []), (three, [await ledger(three, b"c")])])
    assert [await values(ns, name) for name in ("a", "b", "c")] == [[], [b"alone"], []]
