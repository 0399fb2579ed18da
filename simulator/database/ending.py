"""The end of a life of databases: faults are healed, a leader commits, all replicas catch up, the log is verified."""

from __future__ import annotations

from collections.abc import Sequence

from buckram.cluster import Client
from buckram.errors import NotLeader, OffsetTruncated, StateLost
from buckram.state.db.database import Database
from simulator.database.banking import Banker
from simulator.database.clients import ClientActor
from simulator.database.reading import READ
from simulator.database.stage import Stage
from simulator.engine.faults import FaultRunner
from simulator.machine.ending import ReplicaEnding
from simulator.machine.faults import MACHINE, NAMESPACE

_REGISTERS = "SELECT key, value FROM registers ORDER BY key"


class Ending(ReplicaEnding[Database]):
    """Ends one life."""

    def __init__(self, stage: Stage, faults: FaultRunner, bankers: Sequence[Banker] = ()) -> None:
        super().__init__(stage, faults)
        self._bankers = bankers
        self.stage, self.rules = stage, stage.rules

    def _judge(self) -> None:
        self.rules.judge()

    async def _lead_and_write(self) -> None:
        """Execute a few transactions, then check that every replica has the same rows."""
        await self._leader()
        last = ClientActor(self.stage, "last")
        for _ in range(3):
            await last.unit()
            await last.register()
        await last.read()
        for banker in self._bankers:
            await banker.check_end()
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
