"""Who writes the inputs of queries, and who destroys some of them: the actors on the side of streams.

Whatever is destroyed was sealed and read into the model before, under the lock of the stream.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from buckram.cluster import Client
from buckram.errors import BuckramError, StreamExists
from simulator.engine.world import Died
from simulator.pipeline.queries import NAMESPACE
from simulator.pipeline.stage import Stage

PATIENCE_S = 30.0


class StreamActor:
    """An actor with a client of its own, which is started again when its process dies."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.host = stage, stage.world, host
        self.rng = random.Random(f"{stage.plan.seed} {host}")
        self._client: Client | None = None

    async def within(self, work: Callable[[Client], Awaitable[None]], what: str, stream: str = "") -> bool:
        """Do something with a client, under the lock of a stream. Return whether it was done; faults may hinder it."""
        if not stream:
            return await self._within(work, what)
        async with self.stage.lock(stream):  # Not in the process, which may die without giving it back.
            return await self._within(work, what)

    async def until_done(self, work: Callable[[Client], Awaitable[None]], what: str, stream: str = "") -> None:
        """Do something again and again until it is done."""
        done = False
        while not done:
            done = await self.within(work, what, stream)
            await asyncio.sleep(0.3)

    async def _within(self, work: Callable[[Client], Awaitable[None]], what: str) -> bool:

        async def begun(client: Client) -> BuckramError | TimeoutError | None:
            # Errors are returned as values: nobody waits any more for one that comes behind a death.
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await work(client)
            except (BuckramError, TimeoutError) as error:
                return error
            return None

        try:
            if self._client is None or self.world.processes[self.host].dead:
                self._client = await self.world.client(self.host)
            error = await self.world.join(self.world.processes[self.host], begun(self._client), what)
        except (BuckramError, Died) as failure:
            self.stage.note(self.host, f"{what}: {type(failure).__name__}")
            return False
        if error is not None:
            self.stage.note(self.host, f"{what}: {type(error).__name__}")
        return error is None


class Producer(StreamActor):
    """Appends records to one input, each with a value of its own."""

    def __init__(self, stage: Stage, stream: str) -> None:
        super().__init__(stage, f"p {stream.partition('/')[2]}")
        self._stream = stream
        self._left, self._serial = stage.pipeline.records, 0

    async def run(self) -> None:
        while self._left > 0 and not self.stage.over:
            await self.write(self.rng.choice((1, 3, 3, 10, 25)))
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.1, 0.5, 1.5)))

    async def write(self, count: int) -> bool:
        """Append some records; those of which nobody knows whether they are there are not repeated."""
        values = [b"%s.%d" % (self._stream.encode(), self._serial + n) for n in range(count)]
        self._serial += count
        self._left -= count

        async def append(client: Client) -> None:
            async with client.namespace(NAMESPACE).writer(self._stream, takeover=True, linger_ms=0.0) as writer:
                for first in range(0, count, 3):
                    await writer.append_many(values[first : first + 3])

        return await self.within(append, "append", self._stream)


class Vandal(StreamActor):
    """Truncates inputs, makes them anew, adds some, and holds outputs, while queries run."""

    def __init__(self, stage: Stage, sinks: Callable[[], list[str]]) -> None:
        super().__init__(stage, "vandal")
        self._sinks = sinks
        self.producers: list[Producer] = []
        self._left = list(stage.pipeline.vandalism)

    async def run(self) -> None:
        self.stage.interrupt = self._interrupt
        while self._left and not self.stage.over:
            await asyncio.sleep(self.rng.random() * self.stage.plan.busy_s)
            await self._act()

    async def _act(self) -> None:
        acts = {
            "truncate": self._truncate,
            "make anew": self._make_anew,
            "add": self._add,
            "hold": self._hold,
            "trim": self._trim,
        }
        if self._left and not self.stage.over:
            await acts[self._left.pop()]()

    async def _interrupt(self) -> None:
        """Do something behind the planning of a batch, and before its tasks read."""
        before = len(self.stage.lost)
        await self._act()
        if len(self.stage.lost) > before:
            self.stage.situation("an input was destroyed between planning and reading")

    def _input(self) -> str:
        return self.rng.choice(sorted({one.name for one in self.stage.model.inputs.values()}))

    async def _truncate(self) -> None:
        stream = self._input()

        async def act(client: Client) -> None:
            ns = client.namespace(NAMESPACE)
            await self.sealed(client, stream)
            found = await self.stage.model.witness(client, stream)
            if found.end > found.earliest:
                before = self.rng.randrange(found.earliest, found.end) + 1
                self.stage.lose(stream)
                found.earliest = before
                self.stage.note(self.host, f"truncates {stream} below {before}")
                await ns.truncate(stream, before=before)
                self.stage.situation("a stream was truncated under a query")

        await self.within(act, "truncate", stream)

    async def _trim(self) -> None:
        """Free what every cursor has passed, as retention does. A query with a cursor loses nothing by it."""
        stream = self._input()

        async def act(client: Client) -> None:
            await self.sealed(client, stream)
            found = await self.stage.model.witness(client, stream)
            earliest = await client.namespace(NAMESPACE).truncate(stream, before_cursors=True)
            if earliest > found.earliest:
                found.earliest, self.stage.trimmed = earliest, True
                self.stage.situation("an input was freed up to a cursor")

        if self.stage.pipeline.source.get("cursor"):
            await self.within(act, "trim", stream)

    async def _make_anew(self) -> None:
        stream = self._input()

        async def delete(client: Client) -> None:
            await self.sealed(client, stream)
            found = await self.stage.model.witness(client, stream)
            self.stage.lose(stream)
            found.earliest = found.end
            self.stage.note(self.host, f"deletes {stream}, which ended at {found.end}")
            await client.namespace(NAMESPACE).delete(stream)

        async def make(client: Client) -> None:
            with suppress(StreamExists):
                await client.namespace(NAMESPACE).create(stream, **self.stage.pipeline.policy)
            await self.stage.model.witness(client, stream)

        if await self.within(delete, "delete", stream):
            await asyncio.sleep(self.rng.choice((0.0, 0.5)))
            await self.until_done(make, "make", stream)
            self.stage.situation("a stream was made anew under a query")

    async def _add(self) -> None:
        stream = f"{NAMESPACE}/in{len(self.producers) + 1 + self.stage.pipeline.inputs}"

        async def act(client: Client) -> None:
            await client.namespace(NAMESPACE).create(stream, **self.stage.pipeline.policy)
            await self.stage.model.witness(client, stream)

        if await self.within(act, "add"):
            producer = Producer(self.stage, stream)
            self.producers.append(producer)
            await producer.write(self.rng.choice((1, 5)))
            if self.rng.random() < 0.5:
                await producer.write(3)

    async def _hold(self) -> None:
        sinks = self._sinks()
        if not sinks:
            return
        stream = self.rng.choice(sinks)

        async def act(client: Client) -> None:
            async with client.namespace(NAMESPACE).writer(stream, takeover=True):
                self.stage.situation("an output was held by a writer")
                await asyncio.sleep(self.rng.random())

        await self.within(act, "hold")

    async def sealed(self, client: Client, stream: str) -> None:
        """End what a writer that died may have left, so that the stream ends where readers see it end."""
        async with client.namespace(NAMESPACE).writer(stream, takeover=True):
            pass


__all__ = ["PATIENCE_S", "Producer", "StreamActor", "Vandal"]
