"""Newcomers: a host that opens a replica with nothing again and again, and is asked from the first moment on.

Its files go when it is closed, so every opening begins with a snapshot, or with the whole log, while others write.
"""

from __future__ import annotations

import asyncio

from buckram.cluster import Client
from buckram.state.db.database import Database
from simulator.database.asking import Asking
from simulator.database.looking import Bounds, Looking
from simulator.database.replicas import ReplicaActor
from simulator.database.stage import Stage
from simulator.machine.replicas import Restless

HOST = "m9"


class NewcomerActor(ReplicaActor):
    """A replica that is opened, asked at once, closed or killed after a while, and opened again."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage, HOST)
        self.looking = Looking(Asking(stage, "newcomer"))

    async def _read_at_once(self, database: Database, filled: bool) -> None:
        """Ask for every level at once; the judge has all of it."""
        asking = self.world.loop.create_task(self._ask_at_once(filled), context=self.world.loop.world.context)
        asking.set_name("ask the newcomer")

    async def _ask_at_once(self, filled: bool) -> None:
        known = max((one.position for one in self.stage.rules.histories.looks if one.position), default=0)
        kinds: list[Bounds] = [
            ("stale", None, None),
            ("stale", 0.3, None),
            ("stale", None, known),
            ("leader", None, None),
        ]
        self.rng.shuffle(kinds)
        answers = await asyncio.gather(*(self.looking.look(self.host, bounds, 8.0) for bounds in kinds))
        if filled and any(answers):
            self.stage.rules.report.situation("a newcomer was read while it caught up")

    async def act(self, machine: Restless) -> None:
        process = self.world.processes[self.host]
        if self.life.over:
            return await super().act(machine)
        if self.rng.random() < 0.3:
            process.crash_after(int(self.rng.random() * 300))
            self.world.disturb(self.host, 0)
        await asyncio.sleep(self.rng.random() * self.rng.choice((0.1, 1.0, 4.0)))
        return None

    async def live(self, client: Client) -> None:
        await super().live(client)
        if not self.life.over:
            self.stage.rules.report.situation("a newcomer was closed")


__all__ = ["NewcomerActor"]
