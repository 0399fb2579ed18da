"""What the parts of a life of administration share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from buckram.metadata.maintain.backup import Backup
from buckram.types import BookieId, LedgerId
from simulator.administration.plan import AdminPlan, most_bookies, place
from simulator.administration.rules import Rules, Written
from simulator.engine.faults import FaultRunner
from simulator.engine.plan import Plan
from simulator.engine.world import Machine, World


class StartTask(Protocol):
    """Starts a task that lasts until the life ends, at most."""

    def __call__(self, work: Coroutine[Any, Any, None], name: str, /) -> object: ...


@dataclass(slots=True)
class Stage:
    """Shared state; implements engine.faults.runner.SimulatedLife."""

    world: World
    admin: AdminPlan
    rules: Rules
    start: StartTask
    faults: FaultRunner = field(init=False)
    busy: set[BookieId] = field(default_factory=set)
    """Bookies that a command or a fault of directories is about: no other one takes them."""
    backup: Backup | None = None
    backup_began_at: float = 0.0
    over: bool = False
    """Set when commands, faults and writers are to stop."""
    finished: bool = False
    """Set when healers are to stop, too."""

    @property
    def plan(self) -> Plan:
        return self.admin.cluster

    @property
    def written(self) -> dict[LedgerId, Written]:
        return self.rules.written

    def serving(self) -> list[Machine]:
        """Return the bookies that run and are not taken out."""
        return [one for one in self.world.machines.values() if one.running and one.ready and not one.away]

    def choose(self, rng: random.Random) -> Machine | None:
        """Return a bookie that serves and that nothing else is about, one that ledgers name if there is any."""
        free = [one for one in self.serving() if one.name not in self.busy]
        named = [one for one in free if self.rules.naming(one.name)]
        return rng.choice(named or free) if free else None

    def may_damage(self) -> bool:
        """Return whether no other bookie has lost copies: the guarantee is about the loss of one."""
        known = [self.world.judge.facts.bookie(name) for name in self.world.machines]
        return not any(one.damaged or one.wiped for one in known)

    def may_lose_one(self) -> bool:
        """Return whether new ledgers find enough bookies when one more stops."""
        return len(self.serving()) > self.plan.shape[0]

    def add_machine(self, number: int) -> Machine:
        name, host = place(self.admin, number)
        return self.world.add_machine(name, host=host, site=self.plan.site(number))

    async def add_bookie(self) -> Machine | None:
        """Add an empty bookie if one more may join, and return its machine."""
        world, number = self.world, len(self.world.machines) + 1
        if number > most_bookies(self.admin):
            return None
        machine = self.add_machine(number)
        await world.boot(machine)
        self.start(self.faults.supervise(machine), f"supervise {machine.name}")
        return machine

    def stop(self, machine: Machine, *, power: bool = False) -> None:
        """Stop a bookie: its supervisor does not start it until `machine.away` is taken back."""
        machine.away = True
        self.world.faults += 1
        self.world.crash(machine, power=power)

    async def let_serve(self, machine: Machine, *, supervise: bool = False) -> bool:
        """Start a bookie that was stopped; return whether it serves."""
        machine.away = False
        if supervise:
            self.start(self.faults.supervise(machine), f"supervise {machine.name}")
        for _ in range(20):
            if machine.running and machine.ready:
                return True
            await self.faults.restart(machine)
            await asyncio.sleep(0.5)
        return machine.running and machine.ready

    async def nap(self, rng: random.Random, most_s: float) -> None:
        await asyncio.sleep(rng.random() * most_s)
