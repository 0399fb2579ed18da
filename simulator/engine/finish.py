"""The beginning of a life's end, for any subject: all faults end, bookies come back, deadlines are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from buckram.errors import BuckramError
from simulator.engine.faults import FaultRunner
from simulator.engine.faults.runner import SimulatedLife
from simulator.engine.world import Died, World

DEADLINE_S = 90.0


class Finish:
    """Base class of endings; subclasses define what must come true."""

    def __init__(self, stage: SimulatedLife, faults: FaultRunner) -> None:
        self.world, self.faults, self.report = stage.world, faults, stage.world.report
        self.deadline_s = stage.plan.pace.deadline_s(DEADLINE_S, syncs=300, metadata_requests=60)

    async def heal(self, asleep: Callable[[str], bool] = lambda host: False) -> None:
        """End all faults and restart bookies; hosts that are `asleep` stay paused. The life says before that it is
        over."""
        world = self.world
        world.trace.note("ending", "heals")
        self.faults.heal()
        for process in world.processes.values():
            process.crash_after(1 << 60)
        await self.revive()
        for host in world.processes:
            if not asleep(host):
                world.resume(host)

    async def revive(self, invariant: str = "ends", tries: int = 10) -> None:
        """Restart bookies that are dead and not gone for good; it violates the invariant if one does not start."""
        for machine in self.world.machines.values():
            if not machine.running and not self.world.judge.facts.bookie(machine.name).wiped:
                for _ in range(tries):
                    await self.faults.restart(machine)
                    if machine.ready:
                        break
                    await asyncio.sleep(1.0)
                self.report.check(
                    invariant,
                    machine.ready,
                    "{} does not start although all is well: {}",
                    machine.name,
                    machine.refused,
                )

    async def done(self, tasks: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*tasks)

    async def within(self, work: Awaitable[None], what: str) -> None:
        await done_within(self.world, work, what, self.deadline_s)


async def done_within(world: World, work: Awaitable[None], what: str, deadline_s: float) -> None:
    """Await the work; report a violation if it fails or does not end within the deadline although nothing is wrong."""
    try:
        async with asyncio.timeout(deadline_s):
            await work
    except TimeoutError:
        waiting = world.loop.waiting()
        world.report.check(
            "ends", False, "{} is not done within {} s although all is well; {}", what, deadline_s, waiting
        )
    except (BuckramError, Died) as error:
        world.report.check("ends", False, "{} fails although all is well: {!r}", what, error)
    else:
        world.report.check("ends", True)


__all__ = ["Finish", "done_within"]
