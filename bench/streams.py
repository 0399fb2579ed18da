"""Performance of streams: one writer, readers, a tail, a thousand streams, rolling, and very long ones. 100 B,
3/3/2."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from bench.harness import inside
from buckram import BufferFull, Client, Namespace
from buckram.cli.bench.load import every
from buckram.core.streams.metadata.changes import check_head
from buckram.core.streams.metadata.head import PAGE_SEGMENTS, Page, Segment, Summary, encode_head, encode_page
from buckram.core.streams.names import stream_name
from buckram.core.streams.records.record_format import NO_SNAPSHOT, NO_TXID
from buckram.types import Create, KeyOp, SetValue

Figures = dict[str, Any]
RECORD = bytes(100)
SECONDS = float(os.environ.get("BENCH_SECONDS", "15"))
STREAMS = int(os.environ.get("BENCH_STREAMS", "1000"))
SEGMENTS = int(os.environ.get("BENCH_SEGMENTS", "100000"))
BATCH = 10_000
BATCHES_IN_FLIGHT = 8
TAIL_RATE = 5_000
TICK_S, FINE_S = 0.001, 0.0004


def measure(load: Callable[[Client], Coroutine[Any, Any, Figures]]) -> Figures:
    """Run a load in this process against three bookie processes."""
    return inside(lambda bench, client: load(client))


def _rate(records: int, seconds: float, spent: float) -> Figures:
    return {"records_per_s": round(records / seconds), "client_cpu_us_per_record": round(spent / records * 1e6, 3)}


async def append_many(client: Client) -> Figures:
    async with client.namespace().writer("s") as writer:
        batch = [RECORD] * BATCH
        await writer.append_many(batch)
        began, cpu, first = time.perf_counter(), time.process_time(), writer.acknowledged

        async def chain() -> None:
            while time.perf_counter() - began < SECONDS:
                await writer.append_many(batch)

        await asyncio.gather(*(chain() for _ in range(BATCHES_IN_FLIGHT)))
        return _rate(writer.acknowledged - first, time.perf_counter() - began, time.process_time() - cpu)


async def append_nowait(client: Client) -> Figures:
    async with client.namespace().writer("s") as writer:
        await writer.append_many([RECORD] * BATCH)
        began, cpu, first = time.perf_counter(), time.process_time(), writer.acknowledged
        while time.perf_counter() - began < SECONDS:
            try:
                for _ in range(1000):
                    writer.append_nowait(RECORD)
                await asyncio.sleep(0)
            except BufferFull:
                await asyncio.sleep(TICK_S)
        await writer.flush()
        return _rate(writer.acknowledged - first, time.perf_counter() - began, time.process_time() - cpu)


async def read(client: Client) -> Figures:
    ns, count = client.namespace(), 5_000_000
    async with ns.writer("s") as writer:
        for _ in range(count // BATCH):
            await writer.append_many([RECORD] * BATCH)
    figures: Figures = {}
    for name, values in (("batches", False), ("values", True)):
        began, cpu, found = time.perf_counter(), time.process_time(), 0
        async for batch in ns.read("s").batches():
            found += len(batch.values()) if values else len(batch)
        took, spent = time.perf_counter() - began, time.process_time() - cpu
        assert found == count
        figures |= {f"{name}_{key}": value for key, value in _rate(found, took, spent).items()}
    began, found = time.perf_counter(), 0
    async for _ in ns.read("s", stop=count // 5):
        found += 1
    return {**figures, "one_by_one_records_per_s": round(found / (time.perf_counter() - began))}


async def tail(client: Client) -> Figures:
    """Measure the time from the call of append until a reader in the same process has the record, and until its
    acknowledgement.

    `from_due` counts from the moment when the call was due, so it includes the lateness of the load generator.
    """
    ns, total = client.namespace(), int(TAIL_RATE * max(SECONDS, 10.0))
    async with ns.writer("s") as writer:
        await writer.append(RECORD)
        due: list[float] = [0.0] * (total + 1)
        seen: list[float] = [0.0] * (total + 1)
        acked: list[float] = [0.0] * (total + 1)
        called: list[float] = [0.0] * (total + 1)

        async def follow() -> None:
            async for batch in ns.read("s", start=1, stop=total + 1, follow=True).batches():
                now = time.perf_counter()
                for offset in range(batch.first_offset, batch.next_offset):
                    seen[offset] = now

        def stored(future: asyncio.Future[int]) -> None:
            acked[future.result()] = time.perf_counter()

        reading = asyncio.create_task(follow())
        await asyncio.sleep(0.5)
        sent = 0
        all_sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def send() -> None:
            nonlocal sent
            ready = min(int((time.perf_counter() - began) * TAIL_RATE), total)
            for offset in range(sent + 1, ready + 1):
                due[offset], called[offset] = began + offset / TAIL_RATE, time.perf_counter()
                writer.append_nowait(RECORD).add_done_callback(stored)
            sent = ready
            if sent == total and not all_sent.done():
                all_sent.set_result(None)

        with every(FINE_S, send, all_sent) as began:
            await all_sent
        await writer.flush()
        async with asyncio.timeout(30):
            await reading
    skip = total // 10  # a tenth warms up
    return {
        **_percentiles("tail", [s - c for s, c in zip(seen[skip:], called[skip:], strict=True)]),
        **_percentiles("tail_from_due", [s - d for s, d in zip(seen[skip:], due[skip:], strict=True)]),
        **_percentiles("ack", [a - c for a, c in zip(acked[skip:], called[skip:], strict=True)]),
        **_percentiles("after_ack", [s - a for s, a in zip(seen[skip:], acked[skip:], strict=True)]),
    }


def _percentiles(name: str, seconds: list[float]) -> Figures:
    cut = statistics.quantiles(seconds, n=1000)
    shown = {"p50": cut[499], "p99": cut[989], "p999": cut[998], "max": max(seconds)}
    return {f"{name}_{key}_ms": round(value * 1000, 2) for key, value in shown.items()}


async def many_streams(client: Client) -> Figures:
    """Write all streams at once from this process, ten records at a time each."""
    ns = client.namespace()
    began = time.perf_counter()
    writers = []
    for start in range(0, STREAMS, 50):
        names = [f"s-{n}" for n in range(start, min(start + 50, STREAMS))]
        writers += await asyncio.gather(*(ns.writer(name) for name in names))
    opened = time.perf_counter() - began
    batch, count = [RECORD] * 10, 0
    began = time.perf_counter()
    await asyncio.gather(*(writer.append_many(batch) for writer in writers))  # lists each first segment
    listed = time.perf_counter() - began
    began, cpu = time.perf_counter(), time.process_time()

    async def chain(writer: Any) -> None:
        nonlocal count
        while time.perf_counter() - began < SECONDS:
            written = await writer.append_many(batch)
            count += len(written)

    await asyncio.gather(*(chain(writer) for writer in writers))
    figures = _rate(count, time.perf_counter() - began, time.process_time() - cpu)
    began = time.perf_counter()
    for start in range(0, STREAMS, 50):
        await asyncio.gather(*(writer.close() for writer in writers[start : start + 50]))
    return {
        **figures, "streams": STREAMS, "opens_per_s": round(STREAMS / opened),
        "first_appends_per_s": round(STREAMS / listed),
        "closes_per_s": round(STREAMS / (time.perf_counter() - began)),
    }  # fmt: skip


async def rolling(client: Client) -> Figures:
    """A record every millisecond while the stream rolls every second: how long the slowest took."""
    ns = client.namespace()
    await ns.create("s", roll_s=1.0)
    async with ns.writer("s") as writer:
        await writer.append(RECORD)
        waited: list[float] = []
        began = time.perf_counter()
        while (now := time.perf_counter()) - began < max(SECONDS, 10.0):

            def stored(_: asyncio.Future[int], sent: float = now) -> None:
                waited.append(time.perf_counter() - sent)

            writer.append_nowait(RECORD).add_done_callback(stored)
            await asyncio.sleep(TICK_S)
        await writer.flush()
    rolls = len([segment async for segment in ns.segments("s")]) - 1
    return {**_percentiles("append", waited), "rolls": rolls, "appends": len(waited)}


async def long_stream(client: Client) -> Figures:
    """Opening, reading the end of and truncating a stream of SEGMENTS segments, whose rows are made up."""
    ns = client.namespace()
    await ns.create("s")
    await _lengthen(ns, SEGMENTS)
    figures: Figures = {"segments": SEGMENTS}

    async def timed(name: str, work: Coroutine[Any, Any, Any]) -> Any:
        began = time.perf_counter()
        result = await work
        figures[f"{name}_ms"] = round((time.perf_counter() - began) * 1000, 1)
        return result

    fresh = client.namespace()
    writer = await timed("open_writer", _opened(fresh))
    await timed("first_append", writer.append(RECORD))
    await writer.close()
    assert await timed("read_end", _read_one(client.namespace(), SEGMENTS)) == RECORD
    await timed("info", client.namespace().info("s"))
    await timed("find_middle", _find(client.namespace(), SEGMENTS // 2))
    await timed("truncate", client.namespace().truncate("s", before=SEGMENTS // 3, trim_now=False))
    return figures


async def _opened(ns: Namespace) -> Any:
    return await ns.writer("s")


async def _read_one(ns: Namespace, offset: int) -> bytes | None:
    return (await ns.get("s", offset)).value


async def _find(ns: Namespace, offset: int) -> Segment | None:
    head = (await ns.store.read(stream_name("s"))).head
    found = await ns.store.segment_of(head, offset)
    assert found is not None
    assert found.base == offset
    return found


async def _lengthen(ns: Namespace, count: int) -> None:
    """Rows of one record each, as long ago: pages and a tail, as rolling would have left them."""
    name, keys, layout = stream_name("s"), ns.store.keys, ns.store.layout
    at = await ns.store.read(name)
    made = at.head.created
    rows = []
    for n, time_us in enumerate(range(made, made + count)):
        told = Summary(1, 0, 200, time_us, time_us, time_us, time_us, NO_TXID, NO_SNAPSHOT)
        rows.append(Segment(n, 10_000_000 + n, n, time_us, told))
    paged = max(count - PAGE_SEGMENTS, 0) // PAGE_SEGMENTS * PAGE_SEGMENTS
    ops: list[KeyOp] = []
    for start in range(0, paged, PAGE_SEGMENTS):
        page = Page(start // PAGE_SEGMENTS, tuple(rows[start : start + PAGE_SEGMENTS]))
        ops.append(Create(layout.page(at.head.uid, page.number), encode_page(page)))
        if len(ops) == 10:
            await keys.multi(ops)
            ops = []
    head = replace(
        at.head, tail=tuple(rows[paged:]), paged=paged, end=count, next_number=count, last_append=made + count
    )
    check_head(str(name), head)
    await keys.multi([*ops, SetValue(layout.head(name), encode_head(head), at.version)])
