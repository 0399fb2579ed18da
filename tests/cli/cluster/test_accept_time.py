"""`buckram cluster accept-time`: it has to be confirmed, and bookies find it in metadata."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from buckram.metadata.records.recorded_time import read_accepted
from buckram.metadata.uri import open_store
from buckram.testing import cluster


async def accept(uri: str, *more: str) -> tuple[int, bytes]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "buckram", "cluster", "accept-time", "--json", "--metadata", uri, *more,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out


async def test_a_time_is_accepted_when_it_is_confirmed() -> None:
    async with cluster(bookies=1, metadata="sqlite") as running:
        store = await open_store(running.uri)
        try:
            assert (await accept(running.uri))[0] == 2
            assert await read_accepted(store) == 0
            code, out = await accept(running.uri, "--yes")
            assert code == 0
            said = json.loads(out)
            assert said["accepted_us"] == await read_accepted(store)
            assert abs(said["accepted_us"] / 1e6 - time.time()) < 60
        finally:
            await store.close()
