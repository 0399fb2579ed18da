"""The end of a life of machines: faults are healed, somebody leads, everybody catches up, the log is read in full."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from buckram.client.client import Client
from buckram.errors import BuckramError, NotLeader
from buckram.machine.machine import Machine
from buckram.sim.engine.faults import FaultRunner
from buckram.sim.engine.world import Died
from buckram.sim.machine.clients import ClientActor
from buckram.sim.machine.faults import MACHINE, NAME, NAMESPACE
from buckram.sim.machine.stage import Stage
from buckram.sim.machine.state import Book
from buckram.streams.read.reader import Range, StreamReader
from buckram.streams.shared.metadata import StreamStore

DEADLINE_S = 90.0
FINAL = "f1"
"""The host that looks at the end."""


class Ending:
    """Ends one life."""

    def __init__(self, stage: Stage, faults: FaultRunner) -> None:
        self.stage, self.world, self.faults = stage, stage.world, faults
        self.rules, self.report = stage.rules, stage.world.report
        self.deadline_s = stage.plan.pace.deadline_s(DEADLINE_S, syncs=300, metadata_requests=60)

    async def run(self, clients: list[asyncio.Task[None]], replicas: list[asyncio.Task[None]]) -> None:
        await self._heal()
        await self._within(self._done(clients), "the clients")
        await self._within(self._lead_and_write(), "a last leader")
        if not self.report.violations:
            await self._within(self._look(), "the last look")
        self.rules.judge_calls()
        self.stage.finished = True
        await self._within(self._done(replicas), "closing the replicas")

    async def _heal(self) -> None:
        """End all faults and restart bookies."""
        world = self.world
        world.trace.note("ending", "heals")
        self.faults.heal()
        self.stage.over = True
        for process in world.processes.values():
            process.crash_after(1 << 60)
        for machine in world.machines.values():
            if not machine.running and not world.judge.facts.bookie(machine.name).wiped:
                for _ in range(10):
                    await self.faults.restart(machine)
                    if machine.ready:
                        break
                    await asyncio.sleep(1.0)
                self.report.check(
                    "ends", machine.ready, "{} does not start although all is well: {}", machine.name, machine.refused
                )
        for host in world.processes:
            world.resume(host)

    async def _done(self, tasks: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*tasks)

    async def _within(self, work: Awaitable[None], what: str) -> None:
        try:
            async with asyncio.timeout(self.deadline_s):
                await work
        except TimeoutError:
            self.report.check(
                "ends",
                False,
                "{} is not done within {} s although all is well; {}",
                what,
                self.deadline_s,
                self.world.loop.waiting(),
            )
        except (BuckramError, Died) as error:
            self.report.check("ends", False, "{} fails although all is well: {!r}", what, error)
        else:
            self.report.check("ends", True)

    # -- somebody leads -----------------------------------------------------------------------------------

    async def _leader(self) -> Machine[Book]:
        while True:
            for host in self.stage.living():
                machine = self.stage.open[host]
                if machine.role == "leader":
                    return machine
            await asyncio.sleep(0.05)

    async def _lead_and_write(self) -> None:
        """So many commands that every replica must meet a digest after whatever it did before."""
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
                await self._stops(machine)
                self.report.check("R10", machine.applied == at, "{} stopped at {}, not {}", host, machine.applied, at)
            elif host in wrong and self.stage.open.get(host) is machine:
                await self._stops(machine, unless=lambda known=known: known.wrong_from is None)
            elif known.kind == "good":
                await self._catches_up(host, machine, applied)

    async def _stops(self, machine: Machine[Book], unless: Awaitable[bool] | object = None) -> None:
        while machine.role != "stopped":
            if callable(unless) and unless():
                return
            await asyncio.sleep(0.05)

    async def _catches_up(self, host: str, machine: Machine[Book], applied: int) -> None:
        """Within the deadline, whatever role it has."""
        found = await self.world.join(
            self.world.processes[host], machine.read(lambda state: machine.applied, "stale", after=applied), "catch up"
        )
        self.report.check("ends", found >= applied, "{} has applied {} of {}", host, found, applied)

    # -- the last look ------------------------------------------------------------------------------------

    async def _look(self) -> None:
        client = await self.world.client(FINAL)
        await self.world.join(self.world.processes[FINAL], self._look_with(client), "look")

    async def _look_with(self, client: Client) -> None:
        """A new replica, from the newest snapshot; and every record that is left."""
        leader = await self._leader()
        applied = leader.applied
        ns = client.namespace(NAMESPACE)
        async with ns.machine(MACHINE, Book, create=False, stand=False, process=FINAL) as machine:
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
        """It fences whoever leads, and has everything that was acknowledged."""
        await machine.lead(takeover=True)
        for ident, done in self.rules.reference.executed.items():
            self.report.check("log", done.offset < machine.applied, "{} at {} is missing", ident, done.offset)
        try:
            read = await machine.read(lambda state: state.snapshot())
        except NotLeader:
            return  # Another one stood, and its lease began before.
        self.report.check("log", read == self.rules.reference.state_before(machine.applied), "{!r} is read", read)


__all__ = ["Ending"]
