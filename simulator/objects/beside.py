"""A store of another namespace that is filled and deleted, whole, while others are at work."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from buckram.cluster import Client
from buckram.core.streams.metadata.purposes import Purpose
from buckram.core.streams.names import OBJECTS_LOG, StreamName
from buckram.errors import BuckramError, NamespaceExists, NoSuchStream
from buckram.streams.maintain.delete import delete_stream, drop_leftovers
from buckram.streams.maintain.orphans import delete_orphan, find_orphans
from buckram.streams.shared.metadata import StreamStore
from simulator.engine.world import Died
from simulator.objects.stage import Stage

BESIDE = "beside"
LOG = StreamName(BESIDE, OBJECTS_LOG)
_HOST = "n1"


class BesideActor:
    """Puts objects into a store of its own until that is deleted, which happens in the middle."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.world = stage, stage.world
        self.rng = random.Random(f"{stage.objects.seed} beside")

    async def run(self) -> None:
        await asyncio.sleep(self.rng.random() * 2)
        try:
            client = await self.world.client(_HOST)
            await self.world.join(self.world.processes[_HOST], self._live(client), BESIDE)
        except (BuckramError, Died) as error:
            self.world.trace.note(_HOST, f"ends: {error!r}")

    async def _live(self, client: Client) -> None:
        try:
            with suppress(NamespaceExists):
                await client.namespaces.create(BESIDE, **self.stage.objects.policy)
            async with client.objects(BESIDE, process=_HOST) as handle:
                streams = StreamStore(client.services.store)
                self.stage.beside = (await streams.read(LOG)).head.uid
                deleting = asyncio.create_task(self._delete(client, streams))
                for number in range(12):
                    try:
                        await handle.put(f"a/{number}", bytes(self.rng.randrange(400)))
                    except BuckramError as error:
                        self.world.trace.note(_HOST, f"put: {error!r}")
                        break
                await deleting
        finally:
            await client.close()

    async def _delete(self, client: Client, streams: StreamStore) -> None:
        await asyncio.sleep(self.rng.random() * 2)
        try:
            await delete_stream(client, streams, LOG, acting_for=Purpose.OBJECTS)
            self.world.report.situation("a store was deleted beside it")
        except BuckramError as error:
            self.world.trace.note(_HOST, f"delete: {error!r}")


async def delete_beside(stage: Stage) -> None:
    """Complete the deletion, with what late requests have left, as a janitor does.

    A ledger whose creation arrived after its intent was discarded is found among the orphans alone.
    """
    world = stage.world
    client = await world.client("n2")

    async def delete() -> None:
        streams = StreamStore(client.services.store)
        with suppress(NoSuchStream):
            await delete_stream(client, streams, LOG, acting_for=Purpose.OBJECTS)
        await drop_leftovers(client, streams, stage.beside)
        for orphan in await find_orphans(client, streams):
            world.report.check("deleted", orphan.uid == stage.beside, "{} is told to be an orphan", orphan)
            await delete_orphan(client, orphan)
        await client.close()

    await world.join(world.processes["n2"], delete(), "delete")


__all__ = ["BesideActor", "delete_beside"]
