"""One life of administration: bookies, healers, clients, administrators and faults of a plan in one simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import AbstractContextManager
from typing import Any

from buckram.bookie import registration
from buckram.core.healing.records import TreePaths
from buckram.healing.auditing import absence_checks, auditor, periodic_checks
from simulator.administration.catalogue import COMMANDS
from simulator.administration.commands import Administrator
from simulator.administration.ending import Ending
from simulator.administration.names import INVARIANTS, SITUATIONS
from simulator.administration.plan import AdminPlan
from simulator.administration.rules import Rules
from simulator.administration.stage import Stage
from simulator.administration.trouble import run_trouble
from simulator.administration.words import StatusReader
from simulator.administration.workers import Deleter, Reader, Writer
from simulator.engine.faults import FaultRunner
from simulator.engine.healers import AUDITOR, REPLICATOR, Healer
from simulator.engine.healing_watch import watch_healing
from simulator.engine.planned import PlannedLife
from simulator.engine.planting import plant
from simulator.engine.spies import watch_stores
from simulator.engine.trace import Echo
from simulator.engine.world import Machine

BUSY_S = 420.0
"""Time during which administrators are busy, virtual seconds, at most."""


class Life(PlannedLife[AdminPlan]):
    """One life of administration."""

    invariants, situations = INVARIANTS, SITUATIONS

    def __init__(self, plan: AdminPlan, echo: Echo | None = None) -> None:
        super().__init__(plan, f"administration {plan.seed}", echo)
        self.rules = Rules(self.world)
        self.world.metadata.observers.append(self.rules)
        self.stage = Stage(self.world, plan, self.rules, self.start)
        self.faults = self.stage.faults = FaultRunner(self.stage)
        self.status = StatusReader(self.stage)

    def watched(self) -> Iterable[AbstractContextManager[Any]]:
        # Lives are short and have few ledgers: looks are more frequent, and pages smaller.
        yield plant((auditor, "_PAGE", 2), (auditor, "_AT_ONCE", 1), (absence_checks, "_PAGE", 2))()
        yield plant(
            (absence_checks, "WALK_S", 10.0), (absence_checks, "_BETWEEN", 2), (periodic_checks, "_LOOK_S", 5.0)
        )()
        yield plant((registration, "HUNG_S", 0.5))()
        yield watch_stores(self.world)
        yield watch_healing(self.world, self.rules)

    async def prepare_store(self) -> None:
        store = self.world.store(self.world.loop.world, self.world.rng)
        self.rules.paths = TreePaths(store.root)
        await store.initialise()

    def add_bookie(self, number: int) -> Machine:
        return self.stage.add_machine(number)

    async def begin(self) -> None:
        plan, stage = self.plan, self.stage
        hosts = [f"{AUDITOR}{n + 1}" for n in range(plan.auditors)]
        hosts += [f"{REPLICATOR}{n + 1}" for n in range(plan.replicators)]
        for host in hosts:
            healer = Healer(
                self.world,
                host,
                plan.config,
                lambda: not stage.finished,
                self.rules.came_up,
                self.rules.process_ended,
                checks=True,
            )
            self.start(healer.run(), host)
        for n in range(plan.writers):
            self.start(Writer(stage, f"w{n + 1}").run(), f"w{n + 1}")
        for n in range(plan.readers):
            self.start(Reader(stage, f"r{n + 1}").run(), f"r{n + 1}")
        for n in range(plan.deleters):
            self.start(Deleter(stage, f"d{n + 1}").run(), f"d{n + 1}")
        self.start(self.status.run(), "status")
        self.awaited = [
            self.start(Administrator(stage, n + 1, COMMANDS).run(), f"administrator {n + 1}")
            for n in range(plan.administrators)
        ]

    def trouble(self) -> Coroutine[Any, Any, None]:
        return run_trouble(self.stage)

    async def be_busy(self) -> None:
        await asyncio.wait(self.awaited, timeout=BUSY_S)

    async def end(self) -> None:
        await Ending(self.stage, self.faults, self.status).run(self.awaited)

    @property
    def acked(self) -> int:
        return sum(len(written.acked) for written in self.rules.written.values())
