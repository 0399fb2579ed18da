"""One life of self-healing: bookies, workers, writers and faults of a plan in one simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import AbstractContextManager
from typing import Any

from buckram.bookie import registration
from buckram.client.shared import lagging_replicas as behind
from buckram.core.healing.records import TreePaths
from buckram.healing.auditing import absence_checks as first_checks
from buckram.healing.auditing import auditor
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.incomplete_copies import IncompleteCopy
from buckram.metadata.records.underreplication import Underreplication
from simulator.engine.faults import FaultRunner
from simulator.engine.healers import AUDITOR, REPLICATOR, Healer
from simulator.engine.healing_watch import watch_healing
from simulator.engine.planned import PlannedLife
from simulator.engine.planting import plant
from simulator.engine.spies import watch_stores
from simulator.engine.trace import Echo
from simulator.engine.watched_hosts import watch_hosts
from simulator.engine.world import Machine
from simulator.healing.absences import ABSENCES
from simulator.healing.actors import Deleter, Reader, Recoverer
from simulator.healing.ending import Ending
from simulator.healing.faults import Operator
from simulator.healing.names import INVARIANTS, SITUATIONS
from simulator.healing.operations import OPERATIONS
from simulator.healing.plan import HealingPlan
from simulator.healing.rules import Rules
from simulator.healing.workers import Stage, Writer

BUSY_S = 120.0
"""Time during which writers are busy, virtual seconds, at most."""


class Life(PlannedLife[HealingPlan]):
    """One life of self-healing."""

    invariants, situations, startless = INVARIANTS, SITUATIONS, "L12"

    def __init__(self, plan: HealingPlan, echo: Echo | None = None) -> None:
        super().__init__(plan, f"healing {plan.seed}", echo, records_only=plan.tampered)
        world = self.world
        self.rules = Rules(world, plan)
        world.metadata.observers.append(self.rules)
        self.stage = Stage(world, plan, self.rules)
        self.faults = FaultRunner(self.stage)

    def watched(self) -> Iterable[AbstractContextManager[Any]]:
        # Lives have few ledgers: small pages let their listings have several pages all the same.
        yield plant((auditor, "_PAGE", 2), (auditor, "_AT_ONCE", 1), (first_checks, "_PAGE", 2))()
        yield plant((first_checks, "WALK_S", 10.0), (first_checks, "_BETWEEN", 2))()
        yield plant((registration, "HUNG_S", 0.5))()
        if self.plan.mute:
            yield plant((behind, "note_behind", _note_nothing))()
        yield watch_stores(self.world)
        yield watch_hosts(self.world, self.plan.cluster.sites)
        yield watch_healing(self.world, self.rules)

    async def prepare_store(self) -> None:
        self.stage.store = self.store = self.world.store(self.world.loop.world, self.world.rng)
        self.rules.paths = TreePaths(self.store.root)
        await self.store.initialise()

    def add_bookie(self, number: int) -> Machine:
        return self.world.add_machine(f"b{number}", self.plan.location(number), site=self.plan.cluster.site(number))

    async def begin(self) -> None:
        plan, stage = self.plan, self.stage
        self.tree = Underreplication(self.store.keys, self.store.root, "operator")
        hosts = [f"{AUDITOR}{n + 1}" for n in range(plan.auditors)]
        hosts += [f"{REPLICATOR}{n + 1}" for n in range(plan.replicators)]
        if plan.auditors > 1:
            self.world.report.situation("two candidates at once")
        for host in hosts:
            healer = Healer(
                self.world, host, plan.config, lambda: not stage.finished, self.rules.came_up, self.rules.process_ended
            )
            self.start(healer.run(), host)
        self.supervise()
        self.awaited = [self.start(Writer(stage, f"w{n + 1}").run(), f"w{n + 1}") for n in range(plan.ledgers)]
        others = ((Reader, "r", plan.readers), (Recoverer, "c", plan.recoverers), (Deleter, "d", plan.deleters))
        for kind, letter, count in others:
            for n in range(count):
                self.start(kind(stage, f"{letter}{n + 1}").run(), f"{letter}{n + 1}")

    def trouble(self) -> Coroutine[Any, Any, None]:
        return Operator(self.stage, self.store.keys, self.tree, OPERATIONS | ABSENCES).run()

    async def be_busy(self) -> None:
        await asyncio.wait(self.awaited, timeout=BUSY_S)

    async def end(self) -> None:
        await Ending(self.stage, self.faults, self.tree, HealingStatusStore(self.store)).run()

    @property
    def acked(self) -> int:
        return sum(len(written.acked) for written in self.rules.written.values())


async def _note_nothing(*arguments: object) -> list[IncompleteCopy]:
    return []


__all__ = ["Life"]
