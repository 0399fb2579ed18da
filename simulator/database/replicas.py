"""Replicas: a host with an open database, which is opened again after its process died, and leads and stops at
random."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from buckram.cluster import Client
from buckram.errors import BuckramError, SqlError
from buckram.state.db.database import Database
from simulator.database.reading import READ
from simulator.database.stage import Stage
from simulator.machine.faults import MACHINE, NAMESPACE
from simulator.machine.replicas import RestlessActor

_MANY = 5
"""Acknowledged transactions from which on a replica must have the tables when it is opened.

Readers may lack the record that was acknowledged last, but not those before it.
"""


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

    async def _read_at_once(self, database: Database, filled: bool) -> None:
        """Read without bounds right after opening. `filled`: enough was committed before that the tables must exist."""
        try:
            async with asyncio.timeout(5.0):
                await database.query(READ, consistency="stale")
        except (BuckramError, TimeoutError) as error:
            nothing = isinstance(error, SqlError) and "no such table" in str(error)
            self.stage.rules.report.check("begun", not (filled and nothing), "{} answers with {}", self.host, error)
            return
        if filled:
            self.stage.rules.report.situation("a replica was read at once")

    def _opened(self, client: Client) -> AbstractAsyncContextManager[Database]:
        if self.stage.servers is not None:
            return self.stage.servers.serving(self.host, client)
        return client.namespace(NAMESPACE).database(
            MACHINE,
            create=False,
            announce=self.host,
            settings=self.stage.machines.settings,
            directory=str(self.stage.directory),
        )

    async def live(self, client: Client) -> None:
        try:
            filled, began = self.stage.rules.acked >= _MANY, self.world.loop.time()
            async with self._opened(client) as database:
                self.stage.rules.histories.opened(self.host, began)
                self.stage.open[self.host] = database
                self.note(f"is open at {database.applied}")
                await self._read_at_once(database, filled)
                await self.act(database)
                self.stage.open.pop(self.host, None)
        finally:
            await client.close()


__all__ = ["ReplicaActor"]
