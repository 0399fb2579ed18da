"""What the parts of a life of self-healing share, and its writers, each in a simulated process of its own."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from buckram.client.write import writer as ledger_writer
from buckram.cluster import Client
from buckram.core.streams.names import OWNER, OWNER_UID
from buckram.errors import BuckramError
from buckram.seams import MetadataStore
from buckram.streams.shared.metadata import StreamStore
from buckram.types import LedgerId
from simulator.engine.checkers.facts import Handle
from simulator.engine.plan import Plan
from simulator.engine.world import Died, Machine, World
from simulator.healing.plan import SPREAD, HealingPlan
from simulator.healing.rules import Rules, Written


@dataclass(slots=True)
class Stage:
    """Shared state of the parts of a life; implements engine.faults.runner.SimulatedLife."""

    world: World
    healing: HealingPlan
    rules: Rules
    store: MetadataStore = field(init=False)
    """The metadata store as the life itself reads it, without an operator's command."""
    ledgers: list[LedgerId] = field(default_factory=list)
    tails: list[tuple[str, LedgerId, asyncio.Task[None]]] = field(default_factory=list)
    """Readers that follow a ledger to its end: host, ledger and task."""
    closers: list[str] = field(default_factory=list)
    """Hosts of writers that close their ledgers."""
    newcomers: list[Machine] = field(default_factory=list)
    """Bookies that joined since the life began."""
    over: bool = False
    """Set when faults and writers are to stop."""
    finished: bool = False
    """Set when workers are to stop, too."""

    @property
    def plan(self) -> Plan:
        return self.healing.cluster


class Writer:
    """A host that creates one ledger, appends to it slowly, and closes it, leaves it open, or dies."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.plan, self.host = stage, stage.world, stage.plan, host
        self.judge = stage.world.judge
        self.rng = random.Random(f"{stage.healing.seed} {host}")
        self.end = self.rng.choice(("close", "close", "die", "stay"))
        self._leased = stage.healing.streams and random.Random(f"lease {stage.healing.seed} {host}").random() < 0.5
        if self.end == "close":
            stage.closers.append(host)
        self._ledger: LedgerId | None = None
        self._handle: Handle | None = None

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
        if self._handle is not None:
            self._handle.died = True
        if self._ledger is not None:
            self.stage.rules.written[self._ledger].writer_lives = False

    async def _work(self, client: Client) -> None:
        plan = self.plan
        self.judge.facts.enforced[self.host] = SPREAD if plan.racks else 0
        marks, lease = await self._lease(client)
        writer = await client.create(
            ensemble=plan.shape,
            digest=plan.digest,
            password=b"",
            custom_metadata=marks,
            explicit_ids=plan.explicit,
            deferred_sync=plan.deferred,
        )
        self._ledger = writer.ledger_id
        self._handle = self.judge.opened_writer(
            self.host,
            writer.ledger_id,
            explicit=plan.explicit,
            deferred=plan.deferred,
            racks=SPREAD if plan.racks else 0,
        )
        self.stage.ledgers.append(writer.ledger_id)
        written = self.stage.rules.written[writer.ledger_id] = Written(last_append_at=self.world.loop.time())
        written.lease, written.deferred = lease, plan.deferred
        self.world.trace.note(self.host, f"writes ledger {writer.ledger_id} on {writer.metadata.last_fragment}")
        for number in range(plan.entries):
            await self._append(writer, written, number)
            await asyncio.sleep(self.rng.random() * 2 * plan.busy_s / plan.entries)
        if self.end == "close":
            await self._close(writer, self._handle)
        elif lease and self.end == "stay":
            await self._idle()
        written.writer_lives = False

    async def _lease(self, client: Client) -> tuple[dict[str, str], str]:
        """Return a stream ledger's owner marks and the key of its writer's lease; both empty for another ledger."""
        if not self._leased:
            return {}, ""
        store = client.services.store
        key = StreamStore(store).layout.lease(self.host)
        await store.keys.create(key, b"", ephemeral=True)
        return {OWNER: f"default/{self.host}", OWNER_UID: self.host}, key

    async def _append(self, writer: ledger_writer.Writer, written: Written, number: int) -> None:
        assert self._handle is not None
        payload = f"{self.host}/{number}/".encode() + self.rng.randbytes(self.rng.choice((0, 100, 3000)))
        wanted = number if self.plan.explicit else None
        index = self.judge.submit(self._handle, [payload], [wanted])
        try:
            entry = await writer.append(payload, entry_id=wanted)
        except BuckramError as error:
            self.judge.failed(self._handle, index, error)
            raise
        self.judge.acked(self._handle, index, entry)
        written.last_append_at = self.world.loop.time()
        if not self.plan.deferred:
            written.acked[entry] = payload
            return
        written.pending[entry] = payload
        if self.rng.random() < 0.4:
            head = await writer.force()
            self.judge.force_returned(self._handle, head)
            written.acked |= {one: kept for one, kept in written.pending.items() if one <= head}

    async def _close(self, writer: ledger_writer.Writer, handle: Handle) -> None:
        handle.closing, handle.close_called_at = True, self.world.loop.time()
        try:
            await writer.close()
        finally:
            handle.close_called_at = None

    async def _idle(self) -> None:
        """Wait as a stream's writer without records does: it keeps its lease, so healing must not close its ledger."""
        self.world.report.situation("a stream's writer was idle")
        for _ in range(60):
            if self.stage.over:
                return
            await asyncio.sleep(0.5)
