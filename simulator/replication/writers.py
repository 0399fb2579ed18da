"""Applications: they append on the side that they take for the one that writes, and repeat what may not be stored."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from buckram.core.streams.records.producers import UNKNOWN_OFFSET
from buckram.errors import (
    BuckramError,
    MirrorStream,
    NoSuchStream,
    OutOfOrderSequence,
    ProducerForgotten,
    ReplicationRefused,
    WriterLost,
)
from buckram.streams.write.writer import StreamWriter, engine_of
from simulator.engine.world import Died
from simulator.replication.stage import NAMESPACE, Actor, Place, Stage
from simulator.replication.truth import Attempt

OPEN_S = 6.0
APPEND_S = 20.0
WRONG_SIDE = 0.1
"""Chance that a writer tries the side that does not write."""


@dataclass(slots=True)
class Producer:
    """An idempotent producer of one writer for one stream, with what it appended: number n is its sequence n."""

    name: str
    appended: list[Attempt] = field(default_factory=list)


class WriterActor(Actor):
    """A host that opens one writer after another, and changes sides when it is told to."""

    def __init__(self, stage: Stage, host: str) -> None:
        super().__init__(stage, host)
        self.home: Place = stage.primary
        self._serial = self._producers = 0
        self._producer: dict[str, Producer] = {}

    async def run(self) -> None:
        for _ in range(self.plan.sessions):
            if self.stage.over:
                break
            if self.home is not self.stage.primary and self.rng.random() >= self.plan.stubborn:
                self.home = self.stage.primary
            elif self.rng.random() < WRONG_SIDE:
                self.home = self.home.other
            await self.session(self.rng.choice(self.plan.streams))
            await self.nap(0.5 if self.plan.eager else 3.0)
        self.stop()

    async def session(self, stream: str, *, last: bool = False) -> bool:
        """Open a writer, append, and end in one of several ways. Return whether all was acknowledged."""
        home = self.home
        self.start(home)
        try:
            client = await self.client(home)
            generation = home.generation
            if not last:
                self.maybe_kill(400, 8)
            return await self.inside(self._work(client, home, stream, generation, last=last), "writer")
        except Died:
            self.note("died")
        except (BuckramError, TimeoutError) as error:
            self.note(f"{stream} in {home.name}: {error!r}")
        return False

    # -- code of the process --------------------------------------------------------------------------------

    async def _work(self, client: object, home: Place, stream: str, generation: int, *, last: bool) -> bool:
        rng = self.rng
        writer: StreamWriter | None = None
        try:
            async with asyncio.timeout(OPEN_S if not last else APPEND_S):
                writer = await client.namespace(NAMESPACE).writer(  # type: ignore[attr-defined]  # a Client
                    stream,
                    create=self.rules.state_of(home.name) != "",
                    takeover=last or rng.random() < 0.5,
                    name=self.host,
                    linger_ms=rng.choice((0.0, 2.0, 20.0)),
                )
            uid = engine_of(writer)._claim.uid
            good = await self._append(writer, uid, home, generation, last=last)
            if last or rng.random() < 0.6:
                await writer.close()
            return good
        except MirrorStream as error:
            self.note(f"{stream} in {home.name}: {error}")
            self.home = home.other
        except (WriterLost, NoSuchStream, ReplicationRefused) as error:
            self.note(f"{stream} in {home.name}: {error!r}")
            if isinstance(error, ReplicationRefused) or "promoted" in str(error):
                self.home = home.other
        return False

    async def _append(self, writer: StreamWriter, uid: str, home: Place, generation: int, *, last: bool) -> bool:
        rng, good = self.rng, True
        if rng.random() < 0.5:
            good = await self._produce(writer, uid, home, generation)
        eager = self.plan.eager and not last
        for _ in range(rng.choice((10, 40)) if eager else 1 if last else rng.choice((1, 3, 6))):
            if self.stage.over and not last:
                break
            some = [self._fresh() for _ in range(rng.choice((1, 1, 4)))]
            tries = [self._try(writer, one, uid, home, generation) for one in some]
            good = all([await one for one in [asyncio.ensure_future(one) for one in tries]]) and good
            await self.nap(0.1 if eager else 0.0 if last else rng.choice((0.0, 0.3, 2.0)))
            if eager and not good:
                break
        return good

    def _fresh(self, producer: str | None = None, sequence: int | None = None) -> Attempt:
        rng, ident = self.rng, f"{self.host}.{self._serial}"
        self._serial += 1
        value = f"{ident}|".encode() + bytes(rng.choice((0, 20, 300)))
        key = ident.encode() if rng.random() < 0.2 else None
        headers = (("h", b"1"), ("e", b"")) if rng.random() < 0.2 else ()
        attempt = self.truth.attempts[ident] = Attempt(ident, value, key, headers, producer, sequence)
        return attempt

    async def _produce(self, writer: StreamWriter, uid: str, home: Place, generation: int) -> bool:
        """Repeat what may not be stored, and some before it, then append more."""
        rng, stream = self.rng, writer.stream
        producer = self._producer.get(stream)
        if producer is None:
            self._producers += 1
            producer = self._producer[stream] = Producer(f"{self.host}-{self._producers}")
        known = producer.appended
        first = next((at for at, one in enumerate(known) if not one.acks), len(known))
        first = max(first - rng.choice((0, 1, 3)), 0)
        for _ in range(rng.choice((1, 2, 4))):
            known.append(self._fresh(producer.name, len(known)))
        for one in known[first:]:
            try:
                if not await self._try(writer, one, uid, home, generation):
                    return False
            except (OutOfOrderSequence, ProducerForgotten) as error:
                # Earlier records are missing on this side, which is what promotions say.
                self.rules.refused_sequence(known[: one.sequence], uid, str(error))
                self.note(f"{producer.name}: {error}")
                self._producer.pop(stream, None)
                return True
        return True

    async def _try(self, writer: StreamWriter, one: Attempt, uid: str, home: Place, generation: int) -> bool:
        """Append a record; return whether it was acknowledged. Raises what a producer has to know."""
        one.tried.append(uid)
        try:
            async with asyncio.timeout(APPEND_S):
                offset = await writer.append(
                    one.value, key=one.key, headers=one.headers, producer=one.producer, sequence=one.sequence
                )
        except (OutOfOrderSequence, ProducerForgotten):
            one.tried.pop()
            raise
        except WriterLost as error:
            self.note(f"{one.ident}: {error}")
            if "promoted" in str(error) or home is not self.stage.primary:
                self.report.situation("a writer was fenced by a promotion")
            return False
        except (BuckramError, TimeoutError) as error:
            self.note(f"{one.ident}: {error!r}")
            return False
        if offset != UNKNOWN_OFFSET:
            self.rules.acknowledged(one, uid, offset, forgettable=generation != home.generation)
        return True


__all__ = ["WriterActor"]
