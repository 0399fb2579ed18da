"""One life of objects: bookies, putters and faults of a plan in one simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from buckram.state.objects.objects import Objects
from simulator.engine.faults import FaultRunner
from simulator.engine.lives import watch_tasks
from simulator.engine.planned import PlannedLife
from simulator.engine.trace import Echo
from simulator.objects.beside import BesideActor
from simulator.objects.ending import Ending
from simulator.objects.names import INVARIANTS, SITUATIONS
from simulator.objects.plan import LIFE_S, ObjectsPlan
from simulator.objects.putters import PutterActor
from simulator.objects.rules import Rules
from simulator.objects.stage import Stage
from simulator.objects.watching import small_limits, watch_objects


class Life(PlannedLife[ObjectsPlan]):
    """One life of objects."""

    invariants, situations = INVARIANTS, SITUATIONS

    def __init__(self, plan: ObjectsPlan, echo: Echo | None = None) -> None:
        super().__init__(plan, f"objects {plan.seed}", echo)
        self.rules = Rules(self.world, plan.sizes.grace_s)
        self.world.metadata.observers.append(self.rules)
        self.stage = Stage(self.world, plan, self.rules)
        self.faults = FaultRunner(self.stage)
        self._putters = [PutterActor(self.stage, f"o{n + 1}") for n in range(plan.putters)]

    def watched(self) -> Iterable[AbstractContextManager[Any]]:
        stage = self.stage

        def living() -> list[Objects]:
            return [stage.open[host] for host in stage.living()]

        watch = watch_objects(self.world, self.rules, living)
        return small_limits(self.plan.sizes), watch, watch_tasks(self.world)

    async def begin(self) -> None:
        self.awaited = [self.start(putter.run(), putter.host) for putter in self._putters]
        if self.plan.beside:
            self.start(BesideActor(self.stage).run(), "beside")

    async def be_busy(self) -> None:
        acted = [asyncio.create_task(putter.done.wait()) for putter in self._putters]
        await asyncio.wait(acted, timeout=LIFE_S)
        for task in acted:
            task.cancel()

    async def end(self) -> None:
        await Ending(self.stage, self.faults).run(self._putters, self.awaited)

    @property
    def acked(self) -> int:
        return self.rules.acked


__all__ = ["Life"]
