"""Forks: a new database of an earlier state, which must have its pages."""

from __future__ import annotations

import asyncio
import random

from buckram.cluster import Client
from buckram.errors import BuckramError
from simulator.database.rules import DATABASE
from simulator.database.stage import Stage
from simulator.engine.world import Died
from simulator.machine.faults import MACHINE, NAMESPACE


class ForkActor:
    """Makes one fork of some state during a life."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.stage, self.world, self.rules = stage, stage.world, stage.rules
        self.name = f"fork-{number}"
        self.host = f"k{number}"
        self.rng = random.Random(f"{stage.machines.seed} {self.name}")

    async def run(self) -> None:
        await asyncio.sleep(2.0 + self.rng.random() * 4.0)
        for _ in range(3):
            try:
                client = await self.world.client(self.host)
                await self.world.join(self.world.processes[self.host], self._fork(client), self.name)
                return
            except (BuckramError, Died) as error:
                self.world.trace.note(self.host, f"cannot fork: {error!r}")
            await asyncio.sleep(self.rng.random() * 2)

    async def _fork(self, client: Client) -> None:
        namespace, end = client.namespace(NAMESPACE), self.rules.reference.end
        offset = max(end - self.rng.choice((0, 1, 3, 10)), 0)
        try:
            done = await namespace.fork_database(DATABASE, self.name, offset=offset)
        finally:
            await client.close()
        wanted, found = self.rules.reference.state_before(done), self.rules.of(f"{NAMESPACE}/{self.name}").states[-1]
        self.world.report.check(
            "fork", done == offset and wanted == found, "{} of {} at {} has other pages", self.name, MACHINE, offset
        )
        self.world.report.situation("a database was forked")


__all__ = ["ForkActor"]
