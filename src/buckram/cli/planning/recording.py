"""Takes samples and writes them; reads the history. Forecasts from it are `cli/planning/outlook.py`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from buckram.cli.planning.history import NAMESPACE, STREAM, Sample, Space, decode_sample
from buckram.cluster import Client
from buckram.core.cluster.wall_time import APART_US
from buckram.errors import BuckramError, MalformedRecord, NoSuchNamespace, NoSuchStream
from buckram.healing.operations.dependency_check import spaces
from buckram.streams.system_streams import append_in_one_step, make_system_stream
from buckram.types import BookieId

log = logging.getLogger("buckram.planning")
US = 1_000_000
RETENTION_S = 400 * 86_400.0
APPLICATION = "usage history"
MOST_SAMPLES = 100_000


async def sample(client: Client) -> Sample:
    """Return the present space of every bookie that answers. Raises MetadataError."""
    await client.services.clocks.ensure()
    found = await client.services.store.bookies()
    known = await spaces(client, sorted({*found.writable, *found.readonly}))
    rows = {one: Space(_rack(client, one), total, free) for one, (free, total) in known.items() if total}
    return Sample(client.services.clocks.now() // 1000 / 1000, rows)


def _rack(client: Client, bookie: BookieId) -> str:
    rack = client.services.bookies.topology.domain(bookie, "rack") or "/default-rack"
    return rack.replace("//", "/")


async def record(client: Client, at_most_every_s: float = 0.0) -> Sample | None:
    """Add a sample to the history; None where the newest is younger than that, as when several processes record.

    Raises BuckramError for what keeps it from being written.
    """
    await make_system_stream(client, STREAM, RETENTION_S)
    streams = client.namespace(NAMESPACE)
    info = await streams.info(STREAM)
    if at_most_every_s and info.end > info.earliest:
        last = await streams.get(STREAM, info.end - 1)
        await client.services.clocks.ensure()
        age = client.services.clocks.now() - last.timestamp
        if -APART_US <= age < at_most_every_s * US:  # one that lies ahead was dated by a wrong clock
            return None
    now = await sample(client)
    await append_in_one_step(client, info, APPLICATION, [now.encode()], [round(now.wall_s * US)])
    return now


async def keep_recording(client: Client, every_s: float, told: Callable[[Sample], None]) -> None:
    """Record again and again, until cancelled; what fails is logged and tried again the next time."""
    while True:
        try:
            found = await record(client, every_s / 2)
            if found is not None:
                told(found)
        except BuckramError as error:
            log.warning("no sample is added to the usage history: %s", error)
        await asyncio.sleep(every_s)


async def history(client: Client, since_s: float = 0.0) -> list[Sample]:
    """Return the samples since a wall time, oldest first; empty if none were recorded. At most MOST_SAMPLES."""
    found: list[Sample] = []
    streams = client.namespace(NAMESPACE)
    try:
        info = await streams.info(STREAM)
        if info.end <= info.earliest:
            return []
        first = max(info.earliest, info.end - MOST_SAMPLES)
        async with streams.read(STREAM, start=first, on_truncated="skip") as reader:
            async for one in reader:
                if one.timestamp >= since_s * US:
                    with suppress(MalformedRecord):
                        found.append(decode_sample(f"{NAMESPACE}/{STREAM} offset {one.offset}", one.value or b""))
    except (NoSuchNamespace, NoSuchStream):
        return []
    return found
