"""A work queue: jobs are stored once, done in order, and delivered again when a worker dies before it committed.

`python -m examples.work_queue` on the cluster of BUCKRAM_METADATA or of `buckram up` here. A stream has no consumer
groups: each worker has a stream of its own, and a job goes to the worker that its key says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import zlib
from collections.abc import Sequence

from buckram import Namespace, StreamExists, connect

WORKERS = 2


def share_of(key: str) -> str:
    return f"jobs-{zlib.crc32(key.encode()) % WORKERS}"


async def submit(ns: Namespace, jobs: Sequence[tuple[str, str]]) -> int:
    """Store the jobs. Called again after a crash with the same ones, it stores what is missing."""
    stored = 0
    for stream in (f"jobs-{n}" for n in range(WORKERS)):
        mine = [json.dumps(job).encode() for job in jobs if share_of(job[0]) == stream]
        if mine:
            async with ns.writer(stream) as writer:
                stored += len(await writer.append_many(mine, producer="order-import-7", sequence=0))
    return stored


async def work(ns: Namespace, stream: str, done: dict[str, list[str]], *, die_after: int | None = None) -> None:
    """Do jobs until the end of what is there. A job may come twice, so doing it twice must be the same as once."""
    left = die_after
    async with ns.read(stream, cursor="worker") as reader:
        async for record in reader:
            key, what = json.loads(record.value or b"null")
            if what not in done.setdefault(key, []):
                done[key].append(what)
            left = None if left is None else left - 1
            if left == 0:
                return  # as if the process had been killed: this job is done but not committed
            await reader.commit()


async def main() -> None:
    jobs = [(f"customer-{n % 5}", f"order {n}") for n in range(20)]
    async with connect() as client:
        ns = client.namespace()
        for n in range(WORKERS):
            with contextlib.suppress(StreamExists):
                await ns.create(f"jobs-{n}", retention_consumed=True)  # the janitor drops what was committed
        print(f"stored {await submit(ns, jobs)} jobs; again: {await submit(ns, jobs)}")
        done: dict[str, list[str]] = {}
        await work(ns, "jobs-0", done, die_after=3)
        print(f"a worker died after {sum(map(len, done.values()))} jobs")
        await asyncio.gather(*(work(ns, f"jobs-{n}", done) for n in range(WORKERS)))
        wanted: dict[str, list[str]] = {}
        for key, what in jobs:
            wanted.setdefault(key, []).append(what)
        lag = sum([cursor.lag for n in range(WORKERS) for cursor in await ns.cursors(f"jobs-{n}")])
        print(f"all done, in order for each key: {done == wanted}; lag {lag}")


if __name__ == "__main__":
    asyncio.run(main())
