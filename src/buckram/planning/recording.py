"""Takes samples and writes them; reads the history. What is made of it is core/planning."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from buckram.client.client import Client
from buckram.core.planning.history import NAMESPACE, STREAM, Sample, Space, decode_sample
from buckram.core.wire.messages import FREE_DISK_SPACE, TOTAL_DISK_CAPACITY, BookieInfoReply, GetBookieInfo
from buckram.errors import (
    BuckramError,
    Code,
    MalformedRecord,
    NamespaceExists,
    NoSuchNamespace,
    NoSuchStream,
    StreamExists,
)
from buckram.types import BookieId

log = logging.getLogger("buckram.planning")
US = 1_000_000
RETENTION_S = 400 * 86_400.0
APPLICATION = "usage history"
MOST_SAMPLES = 100_000


async def sample(client: Client) -> Sample:
    """The space of every bookie that answers, now. MetadataError."""
    found = await client.services.store.bookies()
    bookies = sorted({*found.writable, *found.readonly})
    answers = await asyncio.gather(*(_space(client, one) for one in bookies))
    rows = {one: space for one, space in zip(bookies, answers, strict=True) if space is not None}
    return Sample(client.services.runtime.clock.wall_us() // 1000 / 1000, rows)


async def _space(client: Client, bookie: BookieId) -> Space | None:
    try:
        reply = await client.services.pool.call(bookie, GetBookieInfo(TOTAL_DISK_CAPACITY | FREE_DISK_SPACE))
    except BuckramError:
        return None
    if not isinstance(reply, BookieInfoReply) or reply.code is not Code.OK:
        return None
    if reply.total_bytes is None or reply.free_bytes is None:
        return None
    rack = client.services.bookies.topology.domain(bookie, "rack") or "/default-rack"
    return Space(rack.replace("//", "/"), reply.total_bytes, reply.free_bytes)


async def record(client: Client, at_most_every_s: float = 0.0) -> Sample | None:
    """Add a sample to the history; None where the newest is younger than that, as when several processes record.

    Raises BuckramError for what keeps it from being written.
    """
    await _prepare(client)
    streams = client.namespace(NAMESPACE)
    info = await streams.info(STREAM)
    newest = info.transactions.get(APPLICATION)
    now = await sample(client)
    if at_most_every_s and info.end > info.earliest:
        last = await streams.get(STREAM, info.end - 1)
        if now.wall_s - last.timestamp / US < at_most_every_s:
            return None
    step = await streams.bulk(STREAM, application=APPLICATION, version=newest.version + 1 if newest else 0)
    ledger = await step.create_ledger()
    try:
        await ledger.append_many([now.encode()], timestamps=[round(now.wall_s * US)])
        await step.publish([await ledger.close()])
    except BaseException:
        with suppress(BuckramError):
            await ledger.abandon()
            await step.abort([ledger.ledger_id])
        raise
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
    """Samples from that wall time on, oldest first; empty where nobody has recorded any. At most MOST_SAMPLES."""
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


async def _prepare(client: Client) -> None:
    """Make namespace and stream where they are missing."""
    writable = len((await client.services.store.bookies()).writable)
    ensemble = "3/3/2" if writable >= 3 else f"{max(writable, 1)}/{max(writable, 1)}/1"
    with suppress(NamespaceExists):
        await client.namespaces.create(NAMESPACE, ensemble=ensemble)
    with suppress(StreamExists):
        await client.namespace(NAMESPACE).create(STREAM, retention_s=RETENTION_S)
