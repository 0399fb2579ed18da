"""Replication between two local clusters: how fast a stream is copied, and how far a mirror is behind a live writer."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from bench.harness import Bench, cluster, inside
from buckram import Client, connect
from buckram.core.streams.names import StreamName
from buckram.replication.sides import Side, side_of
from buckram.replication.stream_copy import StreamCopy
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope

Figures = dict[str, Any]
MIB = 1024 * 1024
BYTES = int(float(os.environ.get("BENCH_REPLICATE_MIB", "512")) * MIB)
RATE, SECONDS = 5000, 10
_RECORD = 1024


def replicate() -> Figures:
    """Three bookies on each side, records of 1 KB."""
    with cluster(machines_before=3) as other:
        return inside(lambda bench, client: _replicate(bench, client, other.uri))


async def _replicate(bench: Bench, client: Client, uri: str) -> Figures:
    async with connect(uri) as there:
        source, target = await side_of(client), await side_of(there)
        return await _copy(source, target) | await _follow(source, target)


async def _copy(source: Side, target: Side) -> Figures:
    """Measure the copy of a whole existing stream."""
    value = os.urandom(_RECORD)
    filling = time.perf_counter()
    async with source.client.namespace().writer("whole") as writer:
        for _ in range(BYTES // MIB):
            await writer.append_many([value] * (MIB // _RECORD))
    filling = time.perf_counter() - filling
    copying = StreamCopy(source, target, StreamName("default", "whole"), Pace(None))
    began, spent = time.perf_counter(), time.process_time()
    await copying.run(follow=False)
    took, cpu = time.perf_counter() - began, time.process_time() - spent
    assert copying.records * _RECORD == BYTES // MIB * MIB
    size = copying.records * _RECORD
    return {
        "copy_mb_per_s": round(size / took / 1e6, 1),
        "copy_cpu_s_per_gb": round(cpu / size * 1e9, 2),
        # What a writer reaches that waits for each megabyte, into the same disk.
        "write_mb_per_s": round(size / filling / 1e6, 1),
    }


async def _follow(source: Side, target: Side) -> Figures:
    """Measure the lag behind a live writer of RATE records a second, from an append until the mirror has it."""
    copying = StreamCopy(source, target, StreamName("default", "live"), Pace(None))
    value, waits = os.urandom(_RECORD), []
    async with source.client.namespace().writer("live") as writer, TaskScope("replicate") as scope:
        await writer.append(value)
        scope.spawn(copying.run(follow=True), "copy")
        loop = asyncio.get_running_loop()
        began, sent = loop.time(), list[tuple[int, float]]()
        done = 0
        while done < len(sent) or loop.time() - began < SECONDS:
            due = min(int((loop.time() - began) * RATE), RATE * SECONDS) + 1
            if due > writer.next_offset:
                for _ in range(due - writer.next_offset):
                    writer.append_nowait(value)
                sent.append((writer.next_offset, loop.time()))
            while done < len(sent) and sent[done][0] <= copying.copied:
                waits.append(loop.time() - sent[done][1])
                done += 1
            await asyncio.sleep(0.005)
    waits.sort()
    return {"lag_p50_s": round(waits[len(waits) // 2], 3), "lag_max_s": round(waits[-1], 3)}
