"""The tools of directed schedules: a small cluster, named clients, blocked links, crashes, and waiting."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from buckram.client.write.writer import Writer
from buckram.core.ledgers.quorum import Quorum
from buckram.types import EntryId, LedgerId
from simulator.engine.checkers.facts import Handle, LedgerFacts
from simulator.engine.loop import Process
from simulator.engine.plan import Plan
from simulator.engine.schedules import ScheduleFailed
from simulator.engine.world import World
from simulator.ledgers.workload.reading import ReaderActor, read_and_report
from simulator.ledgers.workload.recovering import RecovererActor
from simulator.ledgers.workload.stage import OpenedWriter, Stage
from simulator.ledgers.workload.writing import WriterActor


class Condition(Protocol):
    """Something that a script waits for."""

    def __call__(self) -> bool: ...


@dataclass(slots=True)
class ScriptedWriter:
    """A writer that appends only at the script's calls. `submitted` counts its appends."""

    actor: WriterActor
    writer: Writer
    handle: Handle
    submitted: int = 0

    @property
    def ledger(self) -> LedgerId:
        return self.writer.ledger_id

    @property
    def host(self) -> str:
        return self.actor.host

    def append(self, count: int = 1, entry_id: EntryId | None = None) -> None:
        """Submit entries in one turn of the event loop, as code of the writer's process."""
        self.submitted += count

        def go() -> None:
            for _ in range(count):
                payload = f"{self.host}/{len(self.handle.payloads)}/".encode() + bytes(20)
                self.actor.append(self.writer, self.handle, payload, entry_id, nowait=True)

        process = self.actor.process
        process.loop.call_soon(go, context=process.context.copy())

    @property
    def acked(self) -> int:
        return self.handle.acked

    @property
    def idle(self) -> bool:
        """Return whether no append is pending."""
        return len(self.handle.results) >= self.submitted and "pending" not in self.handle.results


class Script:
    """The cluster of a directed schedule. `shape` is (E, Qw, Qa), bookies are b1 to bN.

    An ensemble is (b1, ..., bE) in this order where the schedule asks for it.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        self.world, self.plan = world, plan
        self.stage = Stage(world, plan)
        self.fabric, self.judge, self.facts = world.fabric, world.judge, world.judge.facts

    # the cluster

    async def bookies(self, count: int) -> None:
        setup = self.world.store(self.world.loop.world, self.world.rng)
        await setup.initialise()
        self.setup = setup
        for n in range(1, count + 1):
            machine = self.world.add_machine(f"b{n}")
            if not await self.world.boot(machine):
                raise ScheduleFailed(machine.refused)

    def power_loss(self, *names: str) -> None:
        for name in names:
            self.world.crash(self.world.machines[name], power=True)

    def kill(self, *names: str) -> None:
        for name in names:
            self.world.crash(self.world.machines[name], power=False)

    async def boot(self, *names: str) -> None:
        for name in names:
            machine = self.world.machines[name]
            if not await self.world.boot(machine):
                raise ScheduleFailed(f"{name} does not start: {machine.refused}")

    async def replace_disk(self, name: str) -> None:
        """Replace the disk as an operator does: delete the cookie, start an empty bookie under the old id."""
        machine, facts = self.world.machines[name], self.facts.bookie(name)
        if machine.running:
            self.kill(name)
        machine.device.wipe()
        cookie = await self.setup.read_cookie(name)
        await self.setup.delete_cookie(name, cookie.version)
        self.world.cookie_deleted[name] = facts.wiped = True
        await self.boot(name)

    def block(self, *pairs: tuple[str, str]) -> None:
        for source, target in pairs:
            self.world.disturb(source, 1)
            self.world.disturb(target, 1)
            self.fabric.block(source, target)

    def unblock(self, *pairs: tuple[str, str]) -> None:
        for source, target in pairs:
            self.fabric.unblock(source, target)
            self.world.disturb(source, -1)
            self.world.disturb(target, -1)

    # clients

    async def writer(self, host: str = "w1", *, order: bool = True, **options: object) -> ScriptedWriter:
        """Create a ledger of the plan's shape. `order`: its ensemble is (b1, b2, ...) in this order."""
        actor = WriterActor(self.stage, host)
        client = await actor.connect()
        if client is None:
            raise ScheduleFailed("no client")
        wanted = tuple(f"b{n}" for n in range(1, self.plan.shape[0] + 1))

        async def create() -> Writer:
            for _ in range(5000 if order else 0):
                chosen = client.services.bookies.choose(Quorum(*self.plan.shape))
                if chosen.members == wanted:
                    client.services.bookies.choose = lambda *args, chosen=chosen, **kwargs: chosen  # type: ignore[method-assign]
                    break
            return await client.create(
                ensemble=self.plan.shape,
                digest=self.plan.digest,
                password=self.plan.password,
                custom_metadata={"op": host},
                **options,  # type: ignore[arg-type]  # explicit_ids, deferred_sync
            )

        writer = await self.world.join(actor.process, create(), "create")
        actor.check_absent_bookies(writer)
        handle = self.judge.opened_writer(
            host,
            writer.ledger_id,
            explicit=bool(options.get("explicit_ids")),
            deferred=bool(options.get("deferred_sync")),
        )
        self.stage.ledgers.append(writer.ledger_id)
        self.stage.writers.append(OpenedWriter(host, actor.process, writer, handle))
        return ScriptedWriter(actor, writer, handle)

    async def recoverer(self, host: str = "c1") -> RecovererActor:
        actor = RecovererActor(self.stage, host)
        if await actor.connect() is None:
            raise ScheduleFailed("no client")
        return actor

    async def reader(self, host: str = "r1") -> ReaderActor:
        actor = ReaderActor(self.stage, host)
        if await actor.connect() is None:
            raise ScheduleFailed("no client")
        return actor

    def start_recovery(self, actor: RecovererActor, ledger: LedgerId) -> asyncio.Task[bool]:
        assert actor.client is not None
        return asyncio.create_task(actor.recover(actor.client, ledger))

    async def recover_and_read(self, ledger: LedgerId, host: str = "f1", tries: int = 10) -> LedgerFacts:
        """Recover the ledger with a new client, in up to `tries` attempts, and read it in full."""
        actor = await self.recoverer(host)
        assert actor.client is not None
        for _ in range(tries):
            if await actor.recover(actor.client, ledger):
                break
            await asyncio.sleep(1.0)
        else:
            self.world.report.check("L1", False, "ledger {} cannot be recovered", ledger)
        await self.read_in_full(actor, ledger)
        return self.ledger(ledger)

    async def read_in_full(self, actor: RecovererActor, ledger: LedgerId) -> None:
        closed = self.ledger(ledger).closed
        if closed is None or closed[0] < 0 or actor.client is None:
            return
        client, last = actor.client, closed[0]

        async def work() -> None:
            reader = await client.open(ledger, password=self.plan.password)
            await read_and_report(actor, reader, "final", 0, last, lambda: reader.read(0, last))
            await reader.close()

        await self.world.join(actor.process, work(), "final read")

    def process(self, host: str) -> Process:
        return self.world.processes[host]

    # facts

    def ledger(self, ledger: LedgerId) -> LedgerFacts:
        return self.facts.ledger(ledger)

    def claimed(self, ledger: LedgerId, entry: EntryId, bookie: str) -> bool:
        return bookie in self.ledger(ledger).claims.get(entry, {})

    async def until(self, condition: Condition, what: str, deadline_s: float = 30.0) -> None:
        """Wait until the condition is true, checking it every 0.2 ms. Raises ScheduleFailed after the deadline."""
        end = self.world.loop.time() + deadline_s
        while not condition():
            if self.world.loop.time() > end:
                raise ScheduleFailed(f"{what}: not within {deadline_s} s")
            await asyncio.sleep(0.0002)

    async def await_appends(self, writer: ScriptedWriter, deadline_s: float = 60.0) -> None:
        """Wait until every append of the writer has ended (L3)."""
        with suppress(ScheduleFailed):
            await self.until(lambda: writer.idle, "appends end", deadline_s)
        self.world.report.check(
            "L3",
            writer.idle,
            "appends of {} are pending after {} s: {}",
            writer.host,
            deadline_s,
            [n for n, result in enumerate(writer.handle.results) if result == "pending"],
        )

    async def die_with_adds_under_way(self, writer: ScriptedWriter, bookie: str) -> None:
        """Kill the bookie while three adds wait for its answer, so that the writer notices."""
        self.world.pause(bookie)
        writer.append(3)
        await asyncio.sleep(0.002)
        self.kill(bookie)

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            raise ScheduleFailed(what)
