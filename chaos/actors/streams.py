"""Actors of streams: writers that contend for the same streams, exactly once by producer and sequence, and readers."""

from __future__ import annotations

import asyncio
import hashlib

from buckram.cluster import Client
from buckram.errors import BuckramError, OffsetTruncated
from buckram.namespace import Namespace
from chaos.actors.stage import STREAMS, Stage
from chaos.history import read_own
from chaos.payloads import producer_of, record_value


async def write_streams(stage: Stage) -> None:
    """Write to one stream after the other as a producer. What was not acknowledged is sent again, by a later process
    of this name, too: it must be in the stream once."""
    following = dict.fromkeys(STREAMS, 0)
    for event in read_own(stage.history):
        if event["event"] == "appended":
            following[event["stream"]] = event["sequence"] + event["count"]

    async def work(client: Client) -> None:
        stream = stage.rng.choice(STREAMS)
        following[stream] = await _write(stage, client.namespace(), stream, following[stream])

    await stage.with_clients(work)


async def _write(stage: Stage, namespace: Namespace, stream: str, following: int) -> int:
    """Records from sequence `following` on; returns the first that is not acknowledged."""
    rng, record, producer = stage.rng, stage.recorder.record, f"{stage.name}-{stream}"
    try:
        async with asyncio.timeout(20.0):
            writer = await namespace.writer(stream, takeover=rng.random() < 0.3, wait=True, name=stage.name)
    except (BuckramError, TimeoutError) as error:
        record("not-opened", stream=stream, what=type(error).__name__, text=str(error)[:200])
        await stage.pause(0.3)
        return following
    record("opened", stream=stream, epoch=writer.epoch)
    try:
        for _ in range(rng.randrange(5, 80)):
            if stage.stop.is_set():
                break
            count = rng.choice((1, 3, 20))
            values = [record_value(producer, sequence) for sequence in range(following, following + count)]
            record("sends", stream=stream, sequence=following, count=count)
            offsets = await writer.append_many(values, producer=producer, sequence=following)
            fresh = [offsets.start, offsets.stop] if len(offsets) == count else None  # otherwise some were there
            record("appended", stream=stream, sequence=following, count=count, offsets=fresh)
            following += count
            await stage.pause(0.1)
        await writer.close()
        record("released", stream=stream)
    except BuckramError as error:
        record("lost", stream=stream, what=type(error).__name__, text=str(error)[:200])
        await stage.pause(0.2)
    return following


async def read_streams(stage: Stage) -> None:
    """Follow a stream from its earliest record for some seconds, then another. Each batch is recorded with a digest."""
    await stage.with_clients(lambda client: _follow(stage, client.namespace(), stage.rng.choice(STREAMS)))


async def _follow(stage: Stage, namespace: Namespace, stream: str) -> None:
    if not await namespace.exists(stream):
        await stage.pause(0.5)
        return
    loop = asyncio.get_running_loop()
    end = loop.time() + stage.rng.random() * 10
    reader, wrong, first = namespace.read(stream, follow=True), "", True
    try:
        while loop.time() < end and not stage.stop.is_set() and not wrong:
            try:
                async with asyncio.timeout(1.0):
                    batch = await reader.next_batch()
            except TimeoutError:
                continue
            if batch is None:
                break
            digest = hashlib.blake2b(digest_size=8)
            for one in batch.records():
                digest.update(one.value or b"")
                try:
                    producer_of(one.value or b"")
                except ValueError as error:
                    wrong = f"offset {one.offset}: {error}"
            offsets = [batch.first_offset, batch.next_offset]
            stage.recorder.record(
                "followed", stream=stream, offsets=offsets, digest=digest.hexdigest(), begins=first, wrong=wrong
            )
            first = False
    except OffsetTruncated:
        return
    finally:
        await reader.close()
