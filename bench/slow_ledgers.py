"""Many ledgers that append one entry at a time: what an append costs the client and three bookies. 1 KB, 3/3/2.

Programs with many streams or partitions write like this. With a pause between two appends of a ledger each entry is
followed by an explicit LAC, without one few are.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.cases import SECONDS
from bench.harness import Bench, inside
from bench.machine import cpu_seconds
from buckram import Client
from buckram.client.write.writer import Writer

LEDGERS = 400
PAUSE_S = 0.02
WARM_S = 1.0
_ENTRY = bytes(1024)


def one_at_a_time() -> dict[str, Any]:
    return inside(_load)


async def _load(bench: Bench, client: Client) -> dict[str, Any]:
    writers = [await client.create(ensemble="3/3/2") for _ in range(LEDGERS)]
    busy = await _appends(bench, writers, 0.0)
    paused = await _appends(bench, writers, PAUSE_S)
    for writer in writers:
        await writer.close()
    return {**busy, **{f"paused_{key}": value for key, value in paused.items()}}


async def _appends(bench: Bench, writers: list[Writer], pause_s: float) -> dict[str, Any]:
    done, over = 0, False

    async def chain(writer: Writer) -> None:
        nonlocal done
        while not over:
            await writer.append(_ENTRY)
            done += 1
            if pause_s:
                await asyncio.sleep(pause_s)

    chains = [asyncio.create_task(chain(writer)) for writer in writers]
    await asyncio.sleep(WARM_S)
    began, first, mine, theirs = time.perf_counter(), done, time.process_time(), _bookies(bench)
    await asyncio.sleep(SECONDS / 2)
    count, took = done - first, time.perf_counter() - began
    mine, theirs = time.process_time() - mine, _bookies(bench) - theirs
    over = True
    await asyncio.gather(*chains)
    return {
        "appends_per_s": round(count / took),
        "client_cpu_us_per_append": round(mine / count * 1e6, 1),
        "bookies_cpu_us_per_append": round(theirs / count * 1e6, 1),
    }


def _bookies(bench: Bench) -> float:
    return sum(map(cpu_seconds, bench.pids))
