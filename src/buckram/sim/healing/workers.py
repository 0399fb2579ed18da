"""What runs in a life of self-healing: auditors, replicators and writers, each in a simulated process of its own."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from buckram.client.client import Client
from buckram.errors import BuckramError
from buckram.healing.auditor import Auditor
from buckram.healing.replicator import Replicator
from buckram.sim.engine.plan import Plan
from buckram.sim.engine.world import Died, Machine, World
from buckram.sim.healing.plan import HealingPlan
from buckram.sim.healing.rules import REPLICATOR, Rules, Written
from buckram.types import LedgerId


@dataclass(slots=True)
class Stage:
    """What the parts of a life share: an engine.faults.runner.SimulatedLife."""

    world: World
    healing: HealingPlan
    rules: Rules
    ledgers: list[LedgerId] = field(default_factory=list)
    newcomers: list[Machine] = field(default_factory=list)
    """Bookies that joined since the life began."""
    over: bool = False
    """Faults and writers end."""
    finished: bool = False
    """Workers end, too."""

    @property
    def plan(self) -> Plan:
        return self.healing.cluster


class Worker:
    """A host with an auditor or a replicator, which is started again whenever it died."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.host = stage, stage.world, host

    async def run(self) -> None:
        while not self.stage.finished:
            try:
                client = await self.world.client(self.host)
                await self.world.join(self.world.processes[self.host], self._work(client), "healing")
            except Died:
                pass
            except BuckramError as error:
                self.world.trace.note(self.host, f"ends: {error!r}")
            await asyncio.sleep(0.5)

    async def _work(self, client: Client) -> None:
        config = self.stage.healing.config
        if not self.host.startswith(REPLICATOR):
            await self._audit(Auditor(client, self.host, config))
            return
        replicator = Replicator(client, self.host, config)
        rules, run = self.stage.rules, replicator._repair.run

        async def watched(ledger: LedgerId, named: Any) -> Any:
            rules.began(self.host, ledger)
            self.world.trace.note(self.host, f"looks at ledger {ledger}, {named}")
            outcome = await run(ledger, named)
            self.world.trace.note(self.host, f"ledger {ledger}: {outcome.replaced} replaced, {outcome.reasons}")
            return outcome

        replicator._repair.run = watched  # type: ignore[method-assign]  # of this one only
        await replicator.run()

    async def _audit(self, auditor: Auditor) -> None:
        walk, rules = auditor._walk, self.stage.rules

        async def watched(due: Any) -> Any:
            before = rules.there()
            rules.auditing += 1
            try:
                index = await walk(due)
            finally:
                rules.auditing -= 1
            rules.audited(self.host, before, index.ledgers)
            return index

        auditor._walk = watched  # type: ignore[method-assign]  # of this one only
        await auditor.run()


class Writer:
    """A host that makes one ledger, appends to it slowly, and closes it, leaves it open, or dies."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.plan, self.host = stage, stage.world, stage.plan, host
        self.rng = random.Random(f"{stage.healing.seed} {host}")
        self.end = self.rng.choice(("close", "close", "die", "stay"))
        self._ledger: LedgerId | None = None

    async def run(self) -> None:
        try:
            client = await self.world.client(self.host)
            await self.world.join(self.world.processes[self.host], self._work(client), "writer")
        except (BuckramError, Died) as error:
            self.world.trace.note(self.host, f"ends: {error!r}")
        if self.end == "die" or self._ledger is None or self.stage.rules.written[self._ledger].writer_lives is False:
            self._crash()

    def _crash(self) -> None:
        process = self.world.processes.get(self.host)
        if process is not None and not process.dead:
            process.crash()
        if self._ledger is not None:
            self.stage.rules.written[self._ledger].writer_lives = False

    async def _work(self, client: Client) -> None:
        plan = self.plan
        writer = await client.create(ensemble=plan.shape, digest=plan.digest, password=b"")
        self._ledger = writer.ledger_id
        self.stage.ledgers.append(writer.ledger_id)
        written = self.stage.rules.written[writer.ledger_id] = Written(last_append_at=self.world.loop.time())
        self.world.trace.note(self.host, f"writes ledger {writer.ledger_id} on {writer.metadata.last_fragment}")
        for number in range(plan.entries):
            payload = f"{self.host}/{number}/".encode() + self.rng.randbytes(self.rng.choice((0, 100, 3000)))
            entry = await writer.append(payload)
            written.acked[entry], written.last_append_at = payload, self.world.loop.time()
            await asyncio.sleep(self.rng.random() * 2 * plan.busy_s / plan.entries)
        if self.end == "close":
            await writer.close()
        written.writer_lives = False
