"""Runs the faults of a life's plan, each at a random time, and restarts bookies that died, as a supervisor does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from simulator.engine.faults.registry import all_faults
from simulator.engine.world import Machine, World

if TYPE_CHECKING:
    from simulator.engine.plan import Plan


class SimulatedLife(Protocol):
    """The parts of a life, of ledgers or of streams, that a fault may use. `over`: faults no longer begin."""

    @property
    def world(self) -> World: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def over(self) -> bool: ...


class RecordedRequest(NamedTuple):
    """One frame that a client sent to the bookie at `server` and `port`."""

    client: str
    server: str
    port: int
    frame: bytes


class FaultRunner:
    """Runs a life's faults. Each fault gets the runner, with the life's world and random numbers of its own."""

    def __init__(self, stage: SimulatedLife) -> None:
        self.stage, self.world, self.plan = stage, stage.world, stage.plan
        self.rng = random.Random(f"faults {stage.plan.seed}")
        self.recorded: list[RecordedRequest] = []
        self._restarting: dict[str, bool] = {}
        self._undo: list[Callable[[], None]] = []

    async def run(self) -> None:
        await asyncio.gather(*[self._run_fault(name) for name in self.plan.faults])

    async def _run_fault(self, name: str) -> None:
        await asyncio.sleep(self.rng.random() * self.plan.busy_s * 1.2)
        if not self.stage.over:
            self.world.faults += 1
            self.world.trace.note("fault", name)
            await all_faults()[name].run(self)

    def on_heal(self, undo: Callable[[], None]) -> None:
        """Add what heal() has to undo besides links, disks and the metadata store."""
        self._undo.append(undo)

    # choices

    def choose_machine(self) -> Machine:
        """Return a random bookie's machine, of the ensemble of a ledger if there is any."""
        machines = list(self.world.machines.values())
        members = [
            m
            for m in machines
            if any(
                m.name in fragment.ensemble
                for ledger in self.world.judge.facts.ledgers.values()
                if ledger.metadata is not None
                for fragment in ledger.metadata.fragments
            )
        ]
        return self.rng.choice(members or machines)

    def client_hosts(self) -> list[str]:
        return [host for host in self.world.processes if host not in self.world.machines]

    async def wait_a_while(self, most_s: float = 4.0) -> None:
        """Sleep for a random time: not at all, up to 0.1 s, or up to `most_s`."""
        await asyncio.sleep(self.rng.choice((0.0, self.rng.random() * 0.1, self.rng.random() * most_s)))

    # bookies that died

    async def restart(self, machine: Machine) -> None:
        """Start a dead bookie after a random time, which may be zero; try again if it dies while it starts."""
        if self._restarting.get(machine.name):
            return
        self._restarting[machine.name] = True
        try:
            await self.wait_a_while()
            for _ in range(5):
                if machine.away or machine.running or await self.world.boot(machine):
                    return
                self.world.record_death(machine)
                if self.world.judge.facts.bookie(machine.name).wiped:
                    return
                await asyncio.sleep(0.5)
        finally:
            self._restarting[machine.name] = False

    async def supervise(self, machine: Machine) -> None:
        """Restart one bookie whenever it died, whatever it died of, until the life is over."""
        while not self.stage.over:
            process = machine.process
            if process is not None and not process.dead:
                dead = asyncio.Event()
                process.on_death(dead.set)
                await dead.wait()
                self.world.record_death(machine)
            if self.world.judge.facts.bookie(machine.name).wiped:
                return
            if not machine.away:
                await self.restart(machine)
            await asyncio.sleep(0.05)

    def record_death_in_operation(self, machine: Machine, power: bool) -> None:
        """Record that a bookie died in the middle of an operation, and not by World.crash()."""
        machine.device.crash_at_op = None
        if power:
            machine.device.power_loss()
        self.world.crashes += 1
        self.world.record_death(machine)

    def record_request(self, request: RecordedRequest) -> None:
        """Keep a request that was sent, for the fault "replay"; the first 400 are enough."""
        if len(self.recorded) < 400:
            self.recorded.append(request)

    def heal(self) -> None:
        """End everything that can be undone at once."""
        world = self.world
        world.fabric.heal()
        world.metadata.down = False
        world.metadata.lose_before = world.metadata.lose_after = 0.0
        for machine in world.machines.values():
            machine.device.fail_writes = machine.device.fail_reads = 0
            machine.device.crash_at_op = None
            machine.device.model.total_bytes = 1 << 40
        for undo in self._undo:
            undo()
        self._undo.clear()
