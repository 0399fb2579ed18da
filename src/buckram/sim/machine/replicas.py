"""Replicas: a host with an open machine, which is opened again whenever its process died, and does restless things."""

from __future__ import annotations

import asyncio
import random

from buckram.client.client import Client
from buckram.errors import BuckramError, ReplicaStopped
from buckram.machine.machine import Machine
from buckram.sim.engine.checkers.judge import describe
from buckram.sim.engine.world import Died
from buckram.sim.machine.faults import MACHINE, NAMESPACE
from buckram.sim.machine.rules import Replicas
from buckram.sim.machine.stage import Stage
from buckram.sim.machine.state import KINDS, Book

_NO_CRASH = 1 << 60


class ReplicaActor:
    """One host's replica during a life."""

    def __init__(self, stage: Stage, host: str, kind: str) -> None:
        self.stage, self.world, self.host, self.kind = stage, stage.world, host, kind
        self.rng = random.Random(f"{stage.machines.seed} machines {host}")
        self.known = stage.rules.hosts[host] = Replicas(kind)

    def note(self, text: str) -> None:
        self.world.trace.note(self.host, text)

    async def run(self) -> None:
        while not self.stage.finished:
            try:
                client = await self.world.client(self.host)
                process = self.world.processes[self.host]
                await self.world.join(process, self._live(client), "replica")
            except Died:
                if self.known.replica is not None and self.known.replica._leader is not None:
                    self.world.report.situation("a leader crashed")
                self.note("died")
            except BuckramError as error:
                self.note(f"ends: {describe(error)}: {error}")
            self.stage.open.pop(self.host, None)
            self.known.replica = None
            await asyncio.sleep(self.rng.random())

    async def _live(self, client: Client) -> None:
        try:
            async with client.namespace(NAMESPACE).machine(
                MACHINE,
                KINDS[self.kind],
                create=False,
                stand=self.kind == "good",
                process=self.host,
                settings=self.stage.machines.settings,
            ) as machine:
                self.known.replica, self.known.opened = machine._replica, machine.applied
                self.stage.open[self.host] = machine
                self.note(f"is open at {machine.applied}")
                await self._act(machine)
                self.stage.open.pop(self.host, None)
        finally:
            await client.close()

    async def _act(self, machine: Machine[Book]) -> None:
        """Until the life ends or it is time to open it again."""
        process = self.world.processes[self.host]
        while not self.stage.finished:
            await asyncio.sleep(self.rng.random() * 1.5)
            if machine.role == "stopped":
                # What stopped it would stop it again.
                await asyncio.sleep(2.0)
                if not self.stage.over and self.rng.random() < 0.5:
                    return
            if self.stage.over or self.rng.random() >= self.stage.machines.restless:
                continue
            if self.rng.random() < self.stage.machines.crashing:
                process.crash_after(int(self.rng.random() * 150))
                self.world.disturb(self.host, 0)
            try:
                if not await self._restless(machine):
                    return
            except ReplicaStopped:
                continue
            except (BuckramError, TimeoutError) as error:
                self.note(f"{describe(error) if isinstance(error, BuckramError) else 'timed out'}: {error}")
            if not self.stage.over:
                process.crash_after(_NO_CRASH)

    async def _restless(self, machine: Machine[Book]) -> bool:
        """Do one thing. False: open the machine again."""
        act = self.rng.choice(("lead", "take over", "step down", "snapshot", "snapshot", "reopen"))
        self.note(f"{act} ({machine.role})")
        if act == "reopen":
            return False
        async with asyncio.timeout(3.0 + self.rng.random() * 3.0):
            if act in ("lead", "take over") and self.kind == "good":
                await machine.lead(takeover=act == "take over")
            elif act == "step down" and machine.role == "leader":
                await machine.step_down()
                self.world.report.situation("a leader stepped down")
            elif act == "snapshot" and machine.role == "leader":
                await machine.snapshot()
        return True


__all__ = ["ReplicaActor"]
