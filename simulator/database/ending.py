"""The end of a life of databases: faults are healed, a leader commits, all replicas catch up, the log is verified."""

from __future__ import annotations

import asyncio

from buckram.cluster import Client
from buckram.errors import NotLeader, OffsetTruncated, StateLost
from buckram.state.db.database import Database
from simulator.database.clients import ClientActor
from simulator.database.reading import READ
from simulator.database.stage import Stage
from simulator.engine.faults import FaultRunner
from simulator.engine.finish import Finish
from simulator.machine.faults import MACHINE, NAMESPACE

FINAL = "f1"
"""The host that verifies the log at the end."""
_REGISTERS = "SELECT key, value FROM registers ORDER BY key"


class Ending(Finish):
    """Ends one life."""

    def __init__(self, stage: Stage, faults: FaultRunner) -> None:
        super().__init__(stage, faults)
        self.stage, self.rules = stage, stage.rules

    async def run(self, clients: list[asyncio.Task[None]], replicas: list[asyncio.Task[None]]) -> None:
        self.stage.over = True
        await self.heal()
        await self.within(self.done(clients), "the clients")
        await self.within(self._lead_and_write(), "a last leader")
        if not self.report.violations:
            await self.within(self._look(), "the last look")
        self.rules.judge()
        self.stage.finished = True
        await self.within(self.done(replicas), "closing the replicas")

    async def _leader(self) -> Database:
        while True:
            for host in self.stage.living():
                database = self.stage.open[host]
                if database.role == "leader":
                    return database
            await asyncio.sleep(0.05)

    async def _lead_and_write(self) -> None:
        """Execute a few transactions, then check that every replica has the same rows."""
        await self._leader()
        last = ClientActor(self.stage, "last")
        for _ in range(3):
            await last.unit()
            await last.register()
        await last.read()
        applied = (await self._leader()).applied
        for host in self.stage.living():
            database = self.stage.open[host]
            for sql in (READ, _REGISTERS):
                result = await self.world.join(
                    self.world.processes[host], database.query(sql, consistency="stale", after=applied), "catch up"
                )
                # Transactions that clients gave up may be committed meanwhile.
                reference = self.rules.reference
                states = range(reference.after[applied - 1], reference.sequence + 1)
                good = any(result.rows == reference.rows(sql, sequence) for sequence in reversed(states))
                self.report.check("log", good, "{} reads {}, not {}", host, result.rows, reference.rows(sql))

    async def _look(self) -> None:
        client = await self.world.client(FINAL)
        await self.world.join(self.world.processes[FINAL], self._look_with(client), "look")

    async def _faults(self, client: Client) -> list[str]:
        """Verify the stored database and return its faults, without those of damaged snapshots.

        Verification starts again if its start was truncated meanwhile. If the oldest snapshot was damaged by a fault of
        the life, nothing can be verified, and the list is empty.
        """
        while True:
            try:
                found = await client.namespace(NAMESPACE).verify_database(MACHINE)
                return [fault for fault in found.faults if "snapshot" not in fault or "damaged" not in fault]
            except OffsetTruncated:
                self.report.situation("what was verified was truncated meanwhile")
            except StateLost:
                if not self.stage.plan.notes:
                    raise
                self.report.situation("the oldest snapshot was damaged")
                return []

    async def _look_with(self, client: Client) -> None:
        """Verify the log and its snapshots, then check that a new replica that takes over has all committed rows."""
        namespace = client.namespace(NAMESPACE)
        faults = await self._faults(client)
        self.report.check("log", not faults, "faults: {}", faults)
        settings, directory = self.stage.machines.settings, str(self.stage.directory)
        async with namespace.database(
            MACHINE, create=False, stand=False, settings=settings, directory=directory
        ) as new:
            await new.lead(takeover=True)
            reference = self.rules.reference
            least = reference.sequence
            try:
                rows = (await new.execute(READ)).rows
            except NotLeader:
                pass  # Another replica stood for leader, and got its lease first.
            else:
                good = any(rows == reference.rows(READ, sequence) for sequence in range(least, reference.sequence + 1))
                self.report.check("log", good, "a new replica reads {}", rows)
        await client.close()


__all__ = ["Ending"]
