"""Runs the stories of a life's plan, each at a random time, and keeps the bookies' supervisors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from buckram.sim.engine.world import Machine, World
from buckram.sim.ledgers.faults.registry import stories

if TYPE_CHECKING:
    from buckram.sim.ledgers.plan import Plan


class Stage(Protocol):
    """What a story may know of its life, whether of ledgers or of streams."""

    @property
    def world(self) -> World: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def over(self) -> bool: ...


class Faults:
    """What a story is told with. `heal()` ends everything that can be undone at once."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.world, self.plan = stage, stage.world, stage.plan
        self.rng = random.Random(f"faults {stage.plan.seed}")
        self.recorded: list[tuple[str, str, int, bytes]] = []
        self._restarting: dict[str, bool] = {}
        self._undo: list[Callable[[], None]] = []

    async def run(self) -> None:
        await asyncio.gather(*[self._one(name) for name in self.plan.faults])

    async def _one(self, name: str) -> None:
        await asyncio.sleep(self.rng.random() * self.plan.busy_s * 1.2)
        if not self.stage.over:
            self.world.faults += 1
            self.world.trace.note("fault", name)
            await stories()[name].tell(self)

    def on_heal(self, undo: Callable[[], None]) -> None:
        """What heal() has to undo beside links, disks and the metadata store."""
        self._undo.append(undo)

    # choices

    def machine(self) -> Machine:
        """A bookie, of those that hold a ledger if there are any."""
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

    def clients(self) -> list[str]:
        return [host for host in self.world.processes if host not in self.world.machines]

    async def last(self, most_s: float = 4.0) -> None:
        """A while: none, a moment, or up to so long."""
        await asyncio.sleep(self.rng.choice((0.0, self.rng.random() * 0.1, self.rng.random() * most_s)))

    # bookies that died

    async def restart(self, machine: Machine) -> None:
        """Bring a dead bookie back after a while (at once, sometimes); again if it died on the way."""
        if self._restarting.get(machine.name):
            return
        self._restarting[machine.name] = True
        try:
            await self.last()
            for _ in range(5):
                if machine.away or machine.running or await self.world.boot(machine):
                    return
                self.world.died(machine)
                if self.world.judge.facts.bookie(machine.name).wiped:
                    return
                await asyncio.sleep(0.5)
        finally:
            self._restarting[machine.name] = False

    async def watch(self, machine: Machine) -> None:
        """A supervisor per bookie: whatever it died of, start it again."""
        while not self.stage.over:
            process = machine.process
            if process is not None and not process.dead:
                dead = asyncio.Event()
                process.on_death(dead.set)
                await dead.wait()
                self.world.died(machine)
            if self.world.judge.facts.bookie(machine.name).wiped:
                return
            if not machine.away:
                await self.restart(machine)
            await asyncio.sleep(0.05)

    def died_in_op(self, machine: Machine, power: bool) -> None:
        """It died in the middle of something, not by crash()."""
        machine.device.crash_at_op = None
        if power:
            machine.device.power_loss()
        self.world.crashes += 1
        self.world.died(machine)

    def record(self, client: str, bookie: str, port: int, frame: bytes) -> None:
        """Requests that went over the wire, for the story "replay"."""
        if len(self.recorded) < 400:
            self.recorded.append((client, bookie, port, frame))

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
