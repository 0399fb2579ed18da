"""The end of a life of machines: faults are healed, a leader commits, all replicas catch up, the log is read in
full."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from buckram.cluster import Client
from buckram.errors import NotLeader
from buckram.state.machine.machine import Machine
from buckram.streams.read.reader import Range, StreamReader
from buckram.streams.shared.metadata import StreamStore
from simulator.engine.faults import FaultRunner
from simulator.engine.finish import Finish
from simulator.machine.clients import ClientActor
from simulator.machine.faults import MACHINE, NAME, NAMESPACE
from simulator.machine.rules import Replicas
from simulator.machine.stage import Handle, ReplicaStage, Stage
from simulator.machine.state import Book

H = TypeVar("H", bound=Handle)
FINAL = "f1"
"""The host that verifies the log at the end."""


class ReplicaEnding(Finish, ABC, Generic[H]):
    """Ends one life of replicas: somebody leads and writes, all catch up, and what is stored is looked at."""

    def __init__(self, stage: ReplicaStage[H], faults: FaultRunner) -> None:
        super().__init__(stage, faults)
        self.replicas = stage

    @abstractmethod
    async def _lead_and_write(self) -> None: ...

    @abstractmethod
    async def _look_with(self, client: Client) -> None: ...

    @abstractmethod
    def _judge(self) -> None:
        """Check the history of all calls."""

    async def run(self, clients: list[asyncio.Task[None]], replicas: list[asyncio.Task[None]]) -> None:
        self.replicas.over = True
        await self.heal()
        await self.within(self.done(clients), "the clients")
        await self.within(self._lead_and_write(), "a last leader")
        if not self.report.violations:
            await self.within(self._look(), "the last look")
        self._judge()
        self.replicas.finished = True
        await self.within(self.done(replicas), "closing the replicas")

    async def _leader(self) -> H:
        while True:
            for host in self.replicas.living():
                handle = self.replicas.open[host]
                if handle.role == "leader":
                    return handle
            await asyncio.sleep(0.05)

    async def _look(self) -> None:
        client = await self.world.client(FINAL)
        await self.world.join(self.world.processes[FINAL], self._look_with(client), "look")


class Ending(ReplicaEnding[Machine[Book]]):
    """Ends one life of machines."""

    def __init__(self, stage: Stage, faults: FaultRunner) -> None:
        super().__init__(stage, faults)
        self.stage, self.rules = stage, stage.rules

    def _judge(self) -> None:
        self.rules.judge_calls()

    # -- somebody leads -----------------------------------------------------------------------------------

    async def _lead_and_write(self) -> None:
        """Execute enough commands that every replica meets a digest, then check that each catches up or stops.

        A replica whose class is wrong or too old must stop itself, or take over a snapshot that puts it right.
        """
        await self._leader()
        wrong = [host for host, known in self.rules.hosts.items() if known.wrong_from is not None]
        last = ClientActor(self.stage, "last")
        settings = self.stage.machines.settings
        for _ in range(settings.digest_commands + 4):
            await last.command()
        for _ in range(3):
            await last.read()
        applied = (await self._leader()).applied
        for host in self.stage.living():
            machine, known = self.stage.open[host], self.rules.hosts[host]
            unknown = [at for at in self.rules.reference.unknown_at if at >= known.opened]
            if known.kind == "old" and unknown:
                at = unknown[0]
                await self._stops(machine, known)
                self.report.check("R10", machine.applied == at, "{} stopped at {}, not {}", host, machine.applied, at)
            elif host in wrong and self.stage.open.get(host) is machine:
                await self._stops(machine, known)
            elif known.kind == "good":
                await self._catches_up(host, machine, applied)

    async def _stops(self, machine: Machine[Book], known: Replicas) -> None:
        """Wait until the replica has stopped, or a snapshot has replaced its wrong state."""
        while True:
            if machine.role == "stopped" or (known.kind == "wrong" and known.wrong_from is None):
                return
            await asyncio.sleep(0.05)

    async def _catches_up(self, host: str, machine: Machine[Book], applied: int) -> None:
        """Check that the replica applies everything below `applied` within the deadline, whatever its role is."""
        found = await self.world.join(
            self.world.processes[host], machine.read(lambda state: machine.applied, "stale", after=applied), "catch up"
        )
        self.report.check("ends", found >= applied, "{} has applied {} of {}", host, found, applied)

    # -- the last look ------------------------------------------------------------------------------------

    async def _look_with(self, client: Client) -> None:
        """Check a new replica, which opens from the newest snapshot, and every record that is left in the log."""
        leader = await self._leader()
        applied = leader.applied
        ns = client.namespace(NAMESPACE)
        settings = self.stage.machines.settings
        async with ns.machine(MACHINE, Book, create=False, stand=False, settings=settings, process=FINAL) as machine:
            state = await machine.read(lambda state: state.snapshot(), "stale", after=applied)
            wanted = self.rules.reference.state_before(machine.applied)
            self.report.check("log", state == wanted, "a new replica has {!r}, not {!r}", state, wanted)
            await self._take_over(machine)
        reader = StreamReader(
            client,
            StreamStore(client.services.store),
            NAME,
            Range(stop=applied, follow=True, on_truncated="skip"),
            on_open=lambda reader: None,
            on_closed=lambda reader: None,
        )
        values = self.rules.reference.values
        async for record in reader:
            found = bytes(record.value or b"")
            self.report.check(
                "log", found == values[record.offset], "record {} is {!r} at the end", record.offset, found
            )
        await reader.close()
        await client.close()

    async def _take_over(self, machine: Machine[Book]) -> None:
        """Take over the leadership and check that the machine has every acknowledged command."""
        await machine.lead(takeover=True)
        for ident, done in self.rules.reference.executed.items():
            self.report.check("log", done.offset < machine.applied, "{} at {} is missing", ident, done.offset)
        try:
            read = await machine.read(lambda state: state.snapshot())
        except NotLeader:
            return  # Another replica stood for leader, and got its lease first.
        self.report.check("log", read == self.rules.reference.state_before(machine.applied), "{!r} is read", read)


__all__ = ["FINAL", "Ending", "ReplicaEnding"]
