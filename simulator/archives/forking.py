"""An actor that forks streams and forks, and deletes, truncates and writes forks."""

from __future__ import annotations

from typing import TypeVar

from buckram.errors import BuckramError, NoSuchStream, OffsetOutOfRange, StreamExists
from simulator.archives.model import Stream
from simulator.archives.removing import Deleter, Truncator
from simulator.archives.stage import Actor, Stage
from simulator.archives.writing import WriterActor
from simulator.engine.checkers.judge import describe

A = TypeVar("A", bound=Actor)
MOST = 4
"""Maximum number of forks at a time."""


class Forker(Deleter):
    """Forks at offsets of all kinds, also sources that are deleted meanwhile."""

    died_as = "died while forking"
    first_s, pause_s = 1.2, 0.8

    def __init__(self, stage: Stage, host: str) -> None:
        super().__init__(stage, host)
        self.made = 0

    async def act(self) -> None:
        forks = [one for one in self.model.living() if one.source is not None]
        how = self.rng.random()
        if forks and (how < 0.2 or len(forks) >= MOST):
            await self.delete(self.rng.choice(forks))
            return
        stream = self.choose(forks=0.5)
        if stream is not None:
            await self._fork(self.at_work(stream))

    async def _fork(self, source: Stream) -> None:
        at: int | None = None
        if self.rng.random() < 0.8:
            at = self.rng.randrange(source.earliest, max(source.top, source.earliest) + 1)
        self.made += 1
        name = f"{self.short(source).partition('-')[0]}-{self.host}-{self.made}"
        try:
            done = await self.ns.fork_stream(self.short(source), name, offset=at)
        except (OffsetOutOfRange, NoSuchStream, StreamExists) as error:
            self.note(f"no fork of {source.name} at {at}: {describe(error)}: {error}")
            return
        self.note(f"{done}")
        fork = self.model.current[done.stream]
        self.report.check("forked", at in (None, done.offset), "fork of {} at {} is {}", source.name, at, done)
        self.report.check(
            "forked", fork.source is not None and fork.at == done.offset, "{} is told, it is {}", done, fork.head
        )
        try:
            if self.rng.random() < 0.6 and fork.usable:
                await self._as(WriterActor).write(fork, 2)
            if self.rng.random() < 0.3 and fork.usable:
                await self._as(Truncator).truncate(fork)
        except BuckramError as error:
            self.note(f"{fork.name}: {describe(error)}: {error}")

    def _as(self, kind: type[A]) -> A:
        """Return another actor in this process, which acts with its client."""
        other = kind(self.stage, self.host)
        other.client, other.rng, other.serial = self.client, self.rng, 1000 * (self.made + 1)
        return other


__all__ = ["Forker"]
