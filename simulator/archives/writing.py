"""Writers of streams and of forks: short sessions that take over from one another."""

from __future__ import annotations

import asyncio

from buckram.errors import (
    BuckramError,
    BufferFull,
    InvalidArgument,
    NoSuchStream,
    RecordTooLarge,
    StreamEnded,
)
from buckram.streams.write.writer import StreamWriter, engine_of
from simulator.archives.model import Stream, labelled
from simulator.archives.stage import Actor
from simulator.engine.checkers.judge import describe

_REFUSED = (RecordTooLarge, BufferFull, InvalidArgument, StreamEnded)


class WriterActor(Actor):
    """Writes one stream after another."""

    died_as = "died while writing"
    first_s, pause_s = 0.2, 0.5

    async def act(self) -> None:
        stream = self.choose(forks=0.4)
        if stream is None:
            return
        await self.write(self.at_work(stream), self.rng.choice((1, 3, 6)), leave=self.rng.random() < 0.3)

    async def write(self, stream: Stream, rounds: int, *, leave: bool = False) -> bool:
        """Open a writer of whatever has the name, and append in rounds. Return whether all was acknowledged."""
        before = stream.head.epoch if stream.head is not None else 0
        try:
            writer = await self.ns.writer(
                self.short(stream), create=False, takeover=True, linger_ms=self.rng.choice((0.0, 5.0))
            )
        except (NoSuchStream, StreamEnded) as error:
            self.note(f"{stream.name}: no writer: {error}")
            return False
        opened = self.model.streams[engine_of(writer)._claim.uid]
        if before:
            self.report.situation("writer took over")
        good = True
        for _ in range(rounds):
            good = await self._append(writer, opened) and good
            if self.rng.random() < 0.35:
                good = await self._roll(writer) and good
            await self.nap(0.3)
        if not leave:
            await writer.close(wait=False)
        return good

    async def _append(self, writer: StreamWriter, stream: Stream) -> bool:
        labels = [self.label() for _ in range(self.rng.choice((1, 2, 5)))]
        for label in labels:
            self.stage.send(stream, label)
        sent = asyncio.get_running_loop().time()
        values = [labelled(label, self.rng.choice((0, 40, 300))) for label in labels]
        try:
            offsets = await writer.append_many(values)
        except BuckramError as error:
            self.note(f"{stream.name}: {labels[0]} and {len(labels) - 1} more failed: {describe(error)}: {error}")
            return False
        self.note(f"{stream.name}: {labels} at {offsets[0]}")
        for offset, label in zip(offsets, labels, strict=True):
            self.stage.acknowledge(stream, offset, label, sent, f"the writer {self.host}")
        return True

    async def _roll(self, writer: StreamWriter) -> bool:
        try:
            await writer.roll()
        except BuckramError as error:
            self.note(f"roll failed: {describe(error)}: {error}")
            return False
        return True


__all__ = ["WriterActor"]
