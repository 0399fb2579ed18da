"""Shared state of the actors of a life, and the actor itself: a client host with its own randomness."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import NamedTuple

from buckram.client.write.writer import Writer
from buckram.cluster import Client
from buckram.errors import BuckramError
from buckram.types import LedgerId
from simulator.engine.checkers.facts import Handle
from simulator.engine.checkers.judge import describe
from simulator.engine.loop import Process
from simulator.engine.plan import Plan
from simulator.engine.world import Died, World


class OpenedWriter(NamedTuple):
    """A writer that an actor opened, the client host and process that it belongs to, and the judge's handle of it."""

    host: str
    process: Process
    writer: Writer
    handle: Handle


@dataclass(slots=True)
class Stage:
    """Shared state of the actors of a life. `over`: actors are to stop as soon as they can."""

    world: World
    plan: Plan
    ledgers: list[LedgerId] = field(default_factory=list)
    writers: list[OpenedWriter] = field(default_factory=list)
    tails: list[asyncio.Task[None]] = field(default_factory=list)
    over: bool = False


class Actor:
    """A client host with its own randomness."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.plan, self.host = stage, stage.world, stage.plan, host
        self.judge = stage.world.judge
        self.rng = random.Random(f"{stage.plan.seed} {host}")
        self.client: Client | None = None

    async def run(self) -> None:
        """Act until the life is over."""

    @property
    def process(self) -> Process:
        return self.world.processes[self.host]

    def note(self, text: str) -> None:
        self.world.trace.note(self.host, text)

    async def connect(self, tries: int = 5) -> Client | None:
        """Start a client on the host, with up to `tries` attempts. Return None if all of them fail."""
        for _ in range(tries):
            try:
                self.client = await self.world.client(self.host)
            except (BuckramError, Died) as error:
                self.note(f"cannot connect: {describe(error)}")
                await asyncio.sleep(0.5)
            else:
                return self.client
        return None

    async def nap(self, most_s: float) -> None:
        """Sleep for a random time of at most `most_s` seconds."""
        await asyncio.sleep(self.rng.random() * most_s)
