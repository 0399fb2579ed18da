"""Replicas: a host with an open database, which is opened again whenever its process died, and does restless things."""

from __future__ import annotations

from buckram.client.client import Client
from buckram.sim.database.stage import Stage
from buckram.sim.machine.faults import MACHINE, NAMESPACE
from buckram.sim.machine.replicas import RestlessActor


class ReplicaActor(RestlessActor):
    """One host's replica of the database."""

    def __init__(self, stage: Stage, host: str) -> None:
        super().__init__(stage, host, "good")
        self.stage = stage

    def leads(self) -> bool:
        database = self.stage.open.get(self.host)
        return database is not None and database._replica._leader is not None

    def closed(self) -> None:
        self.stage.open.pop(self.host, None)

    async def live(self, client: Client) -> None:
        try:
            async with client.namespace(NAMESPACE).database(
                MACHINE,
                create=False,
                announce=self.host,
                settings=self.stage.machines.settings,
                directory=str(self.stage.directory),
            ) as database:
                self.stage.open[self.host] = database
                self.note(f"is open at {database.applied}")
                await self.act(database)
                self.stage.open.pop(self.host, None)
        finally:
            await client.close()


__all__ = ["ReplicaActor"]
