"""Faults of a life of self-healing, and an operator's switches: bookies lost for good or late, workers that die."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from buckram.errors import BuckramError
from buckram.metadata.records.underreplication import Underreplication
from buckram.seams import KeyStore
from simulator.engine.healers import REPLICATOR
from simulator.engine.metadata import HOST
from simulator.engine.world import Machine
from simulator.healing.plan import HANGS
from simulator.healing.workers import Stage


class Operation(Protocol):
    """Carries out one fault."""

    def __call__(self, operator: Operator, /) -> Awaitable[None]: ...


class Operator:
    """Carries out the faults and the operators' commands of one life."""

    def __init__(
        self, stage: Stage, keys: KeyStore, tree: Underreplication, operations: Mapping[str, Operation]
    ) -> None:
        self.stage, self.world, self.keys, self.tree, self._operations = stage, stage.world, keys, tree, operations
        self.rng = random.Random(f"faults {stage.healing.seed}")

    async def run(self) -> None:
        """Lose bookies for good, and meanwhile run all other faults of the plan."""
        known: dict[str, Callable[[], Awaitable[None]]] = {
            "late bookie": self._late_bookie,
            "crash worker": self._crash_worker,
            "expire worker": self._expire_worker,
            "cut worker": self._cut_worker,
            "disable": self._disable,
            "crash bookie": self._crash_bookie,
            HANGS: self._hang_bookie,
        }
        chosen = [known[name]() for name in self.stage.plan.faults if name in known]
        chosen += [self._operations[name](self) for name in self.stage.plan.faults if name in self._operations]
        await asyncio.gather(self._lose(), *chosen)

    def running(self) -> list[Machine]:
        return [machine for machine in self.world.machines.values() if machine.running and not machine.away]

    def closed_ledgers(self) -> list[int]:
        facts = self.world.judge.facts.ledgers
        return [one for one in self.stage.ledgers if (m := facts[one].metadata) is not None and m.closed]

    def machines_of(self, ledger: int) -> list[Machine]:
        """Return the running members of a ledger."""
        metadata = self.world.judge.facts.ledger(ledger).metadata
        names = {b for f in metadata.fragments for b in f.ensemble} if metadata is not None else set()
        return [machine for machine in self.running() if machine.name in names]

    def members(self) -> list[Machine]:
        """Return the running bookies that some ledger names, or all running ones if none is named."""
        named = [
            machine
            for machine in self.running()
            if any(
                machine.name in fragment.ensemble
                for ledger in self.world.judge.facts.ledgers.values()
                if ledger.metadata is not None
                for fragment in ledger.metadata.fragments
            )
        ]
        return named or self.running()

    async def nap(self, most_s: float) -> None:
        await asyncio.sleep(self.rng.random() * most_s)

    def lose(self, machine: Machine, text: str, *, power: bool) -> None:
        """Stop a bookie for good: it does not come back in this life."""
        machine.away = True
        self.world.faults += 1
        self.world.trace.note("fault", f"{machine.name} {text}")
        steady = machine.running and self.world.steady(machine.name, self.world.loop.time() - 10.0)
        self.stage.rules.bookie_lost(machine.name, steady)
        self.world.crash(machine, power=power)

    async def _lose(self) -> None:
        for _ in range(self.stage.healing.lost):
            await self.nap(self.stage.plan.busy_s * 1.3)
            if not self.running():
                return
            machine = self.rng.choice(self.members())
            self.lose(machine, "is lost for good", power=True)
            if self.rng.random() < 0.3:
                machine.device.wipe()
                self.world.judge.facts.bookie(machine.name).wiped = True
                started = await self.world.boot(machine)
                self.world.report.check("M8", not started, "{} serves from an empty disk", machine.name)
                self.world.report.situation("an empty disk was refused")
            await self.nap(30.0)

    async def _late_bookie(self) -> None:
        """Stop a bookie for longer than the delay; it comes back with all its data."""
        await self.nap(self.stage.plan.busy_s)
        if not self.running():
            return
        machine = self.rng.choice(self.members())
        machine.away = True
        self.world.faults += 1
        self.world.trace.note("fault", f"{machine.name} is away")
        self.world.crash(machine, power=False)
        await self.nap(25.0)
        if machine.name not in self.stage.rules.lost:
            machine.away = False
            self.world.report.situation("a lost bookie came back")

    async def _crash_bookie(self) -> None:
        for _ in range(3):
            await self.nap(12.0)
            if self.running():
                self.world.crash(self.rng.choice(self.running()), power=self.rng.random() < 0.3)

    async def _hang_bookie(self) -> None:
        """Pause a bookie for longer than writers wait; it goes on as if nothing had happened."""
        for _ in range(2):
            await self.nap(self.stage.plan.busy_s)
            if not self.running():
                continue
            machine = self.rng.choice(self.members())
            if any(machine.name in one for one in self._open_ensembles()):
                self.world.report.situation("a member of an open ledger hung")
            self.world.faults += 1
            self.world.pause(machine.host)
            await asyncio.sleep(self.rng.choice((2.0, 5.0, 10.0)))
            self.world.resume(machine.host)

    def _open_ensembles(self) -> list[tuple[str, ...]]:
        facts = self.world.judge.facts.ledgers
        found = [facts[one].metadata for one in self.stage.ledgers]
        return [tuple(one.last_fragment.ensemble) for one in found if one is not None and not one.closed]

    def _worker(self) -> str:
        """Return a host with a worker, preferably one that holds a lock."""
        holders = [
            host for host in self._hosts() if any(self.stage.rules.marks.holds(host, one) for one in self._ledgers())
        ]
        return self.rng.choice(holders or self._hosts())

    def _hosts(self) -> list[str]:
        return [host for host in self.world.processes if host[0] in ("a", REPLICATOR)]

    def _ledgers(self) -> list[int]:
        return list(self.stage.ledgers)

    async def _at_a_lock(self) -> None:
        """Wait until some ledger is locked, or for a while."""
        for _ in range(self.rng.randrange(1500)):
            if any(self.stage.rules.marks.holds(host, one) for host in self._hosts() for one in self._ledgers()):
                break
            await asyncio.sleep(0.02)
        await self.nap(self.rng.choice((0.01, 0.1, 1.0)))

    async def _crash_worker(self) -> None:
        for _ in range(3):
            await self._at_a_lock()
            host = self._worker()
            process = self.world.processes[host]
            if any(self.stage.rules.marks.holds(host, one) for one in self._ledgers()):
                self.world.report.situation("a replicator crashed with a lock")
            self.world.faults += 1
            if not process.dead:
                process.crash()
            await self.nap(5.0)

    async def _expire_worker(self) -> None:
        for _ in range(3):
            await self._at_a_lock()
            host = self._worker()
            if any(self.stage.rules.marks.holds(host, one) for one in self._ledgers()):
                self.world.report.situation("a session ended with a lock")
            self.world.faults += 1
            if not self.world.processes[host].dead:
                self.stage.rules.session_ends(host)
                self.world.sessions[host].expire()
            await self.nap(5.0)

    async def _cut_worker(self) -> None:
        await self._at_a_lock()
        host = self._worker()
        others = [HOST] if self.rng.random() < 0.5 else [machine.name for machine in self.world.machines.values()]
        self.world.faults += 1
        for other in others:
            self.world.fabric.block(host, other)
            self.world.fabric.block(other, host)
        await self.nap(15.0)
        for other in others:
            self.world.fabric.unblock(host, other)
            self.world.fabric.unblock(other, host)

    async def _disable(self) -> None:
        await self._at_a_lock()
        with_marks = [key for key in self.stage.rules.marks.marked_at if key in self._ledgers()]
        try:
            await self.tree.enable(False)
            if with_marks:
                self.world.report.situation("disabled with marks")
            await self.nap(20.0)
        except BuckramError:
            pass
