"""After everything is healed: all bookies stop and start again, while no ledger needs those that are gone for good.

The brake may hold only while bookies are away that ledgers name. Not here: the ending itself (`ending.py`).
"""

from __future__ import annotations

import asyncio
import random

from buckram.healing.status_store import HealingStatusStore
from simulator.engine.faults import FaultRunner
from simulator.engine.world import Machine
from simulator.healing.workers import Stage

SHARE = 0.25
"""Share of the lives with more than one lost bookie that get this part."""
TIMES = 2
_NOTICED_S, _BACK_S = 90.0, 150.0
"""Time for auditors to notice that bookies went, and came back, seconds; a look may come a minute late."""


class Encore:
    """Stops all bookies twice, with restarted auditors that have not seen any bookie go."""

    def __init__(self, stage: Stage, faults: FaultRunner, board: HealingStatusStore) -> None:
        self.stage, self.world, self.faults, self.board = stage, stage.world, faults, board

    def wanted(self) -> bool:
        rng = random.Random(f"encore {self.stage.healing.seed}")
        return len(self.stage.rules.lost) > 1 and rng.random() < SHARE and not self._needed()

    async def run(self) -> None:
        self.world.trace.note("encore", "begins")
        for host, process in list(self.world.processes.items()):
            if host.startswith("a") and not process.dead:
                process.crash()
        for _ in range(TIMES):
            await asyncio.sleep(20.0)
            machines = [one for one in self.world.machines.values() if one.running]
            for machine in machines:
                self.world.crash(machine, power=False)
            await self._until_brake(True, _NOTICED_S)
            for machine in machines:
                await self._start(machine)
            held = not await self._until_brake(False, _BACK_S) and not self._needed()
            self.world.report.check(
                "brake", not held, "the brake holds, and no ledger names the bookies that are away: {}",
                sorted(self.stage.rules.lost),
            )  # fmt: skip
        self.world.report.situation("all bookies went when others were long gone")

    async def _start(self, machine: Machine) -> None:
        for _ in range(20):
            if machine.ready and machine.running:
                return
            await self.faults.restart(machine)
            await asyncio.sleep(0.5)

    async def _until_brake(self, on: bool, within_s: float) -> bool:
        end = self.world.loop.time() + within_s
        while (await self.board.brake() is not None) != on:
            if self.world.loop.time() > end:
                return False
            await asyncio.sleep(2.0)
        return True

    def _needed(self) -> bool:
        """Return whether a ledger names a bookie that is gone for good."""
        records = (self.world.judge.facts.ledger(one).metadata for one in self.stage.ledgers)
        members = {b for record in records if record is not None for f in record.fragments for b in f.ensemble}
        return not members.isdisjoint(self.stage.rules.lost)
