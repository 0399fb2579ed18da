"""Replicas: a host with an open machine, which is opened again after its process died, and leads and stops at
random."""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

from buckram.cluster import Client
from buckram.errors import BuckramError, ReplicaStopped
from simulator.engine.checkers.judge import describe
from simulator.engine.world import Died, World
from simulator.machine.faults import MACHINE, NAMESPACE
from simulator.machine.plan import MachinePlan
from simulator.machine.rules import Replicas
from simulator.machine.stage import Stage
from simulator.machine.state import KINDS

_NO_CRASH = 1 << 60


class Restless(Protocol):
    """A handle that can lead: of a machine, or of what is built on one."""

    @property
    def role(self) -> str: ...
    async def lead(self, *, takeover: bool = False) -> None: ...
    async def step_down(self) -> None: ...
    async def snapshot(self) -> int: ...


class RestlessLife(Protocol):
    """The parts of a life that a restless actor uses."""

    @property
    def world(self) -> World: ...
    @property
    def machines(self) -> MachinePlan: ...
    @property
    def over(self) -> bool: ...
    @property
    def finished(self) -> bool: ...


class RestlessActor:
    """One host's replica during a life. Subclasses open it."""

    def __init__(self, stage: RestlessLife, host: str, kind: str) -> None:
        self.life, self.world, self.host, self.kind = stage, stage.world, host, kind
        self.rng = random.Random(f"{stage.machines.seed} machines {host}")

    def note(self, text: str) -> None:
        self.world.trace.note(self.host, text)

    async def run(self) -> None:
        while not self.life.finished:
            try:
                client = await self.world.client(self.host)
                process = self.world.processes[self.host]
                await self.world.join(process, self.live(client), "replica")
            except Died:
                if self.leads():
                    self.world.report.situation("a leader crashed")
                self.note("died")
            except BuckramError as error:
                self.note(f"ends: {describe(error)}: {error}")
            self.closed()
            await asyncio.sleep(self.rng.random())

    def leads(self) -> bool:
        """Return whether the replica led when its process died."""
        raise NotImplementedError

    def closed(self) -> None:
        """Forget the handle of the replica, which is closed or whose process died."""
        raise NotImplementedError

    async def live(self, client: Client) -> None:
        """Open the replica, call `act`, close it, and close the client."""
        raise NotImplementedError

    async def act(self, machine: Restless) -> None:
        """Lead, step down, take snapshots and crash at random until the life ends or it is time to reopen."""
        process = self.world.processes[self.host]
        while not self.life.finished:
            await asyncio.sleep(self.rng.random() * 1.5)
            if machine.role == "stopped":
                # If it were opened again, it would stop at the same record.
                await asyncio.sleep(2.0)
                if not self.life.over and self.rng.random() < 0.5:
                    return
            if self.life.over or self.rng.random() >= self.life.machines.restless:
                continue
            if self.rng.random() < self.life.machines.crashing:
                process.crash_after(int(self.rng.random() * 150))
                self.world.disturb(self.host, 0)
            try:
                if not await self._restless(machine):
                    return
            except ReplicaStopped:
                continue
            except (BuckramError, TimeoutError) as error:
                self.note(f"{describe(error) if isinstance(error, BuckramError) else 'timed out'}: {error}")
            if not self.life.over:
                process.crash_after(_NO_CRASH)

    async def _restless(self, machine: Restless) -> bool:
        """Do one random thing. Return False if the machine is to be opened again."""
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


class ReplicaActor(RestlessActor):
    """One host's replica of the machine."""

    def __init__(self, stage: Stage, host: str, kind: str) -> None:
        super().__init__(stage, host, kind)
        self.stage = stage
        self.known = stage.rules.hosts[host] = Replicas(kind)

    def leads(self) -> bool:
        return self.known.replica is not None and self.known.replica._leader is not None

    def closed(self) -> None:
        self.stage.open.pop(self.host, None)
        self.known.replica = None

    async def live(self, client: Client) -> None:
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
                await self.act(machine)
                self.stage.open.pop(self.host, None)
        finally:
            await client.close()


__all__ = ["ReplicaActor", "RestlessActor"]
