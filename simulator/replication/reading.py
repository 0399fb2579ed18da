"""Readers of mirrors and of whatever else there is: each record that is read is compared with what was appended."""

from __future__ import annotations

from contextlib import suppress

from buckram.cluster import Client
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.records.batch import Record
from buckram.errors import BuckramError, CursorMoved, MirrorStream, NoSuchStream
from simulator.engine.world import Died
from simulator.replication.stage import NAMESPACE, Actor, Place

CURSOR = "tail"
"""The cursor that a reader moves to the end of what it has read on the side that is written."""


async def read_all(client: Client, stream: str) -> tuple[Head, list[Record]]:
    """Return a stream's head, and the records that it has. Raises NoSuchStream and the errors of reading."""
    ns = client.namespace(NAMESPACE)
    name = ns._name(stream)
    head = (await ns.store.read(name)).head
    reader = ns.read(stream, on_truncated="skip")
    try:
        return head, [record async for record in reader]
    finally:
        await reader.close()


class ReaderActor(Actor):
    """A host that reads mirrors while they are copied."""

    async def run(self) -> None:
        while not self.stage.over:
            eager = self.plan.eager
            await self.nap(1.0 if eager else 6.0)
            mirror = self.rng.random() < (0.3 if eager else 0.7)
            place = self.stage.primary.other if mirror else self.stage.primary
            self.start(place)
            try:
                await self.inside(self._read(place), "read")
            except (BuckramError, Died) as error:
                self.note(f"reading in {place.name}: {error!r}")
        self.stop()

    async def _read(self, place: Place) -> None:
        client = await self.client(place)
        generation = place.generation
        for stream in self.plan.streams:
            head, records = await read_all(client, stream)
            now = self.truth.present.get((place.name, stream))
            # Of a stream that was replaced meanwhile nobody knows which one was read.
            if now is not None and now.uid == head.uid and generation == place.generation:
                self.rules.read(head.uid, records)
            if self.plan.eager and records and place is self.stage.primary:
                await self._move_cursor(client, stream, records[-1].offset + 1)
        await client.close()

    async def _move_cursor(self, client: Client, stream: str, offset: int) -> None:
        with suppress(CursorMoved, MirrorStream, NoSuchStream):
            await client.namespace(NAMESPACE).move_cursor(stream, CURSOR, offset)


__all__ = ["ReaderActor", "read_all"]
