"""The end of a life: faults are healed, ledgers are recovered and read in full, paused processes wake up too late.

The ending checks liveness by deadlines (L1 to L3, L5 to L7, L10 to L14), and then the final state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from buckram.bookie.storage.store import Store
from buckram.client.client import Client
from buckram.client.write.writer import Writer
from buckram.core.wire.messages import Read
from buckram.errors import BuckramError, NoSuchLedger
from buckram.sim.engine.checkers.facts import write_set
from buckram.sim.engine.faults import FaultRunner
from buckram.sim.engine.metadata import HOST
from buckram.sim.engine.world import Died
from buckram.sim.ledgers.ids_again import IdsAgain
from buckram.sim.ledgers.workload.reading import read_and_judge
from buckram.sim.ledgers.workload.recovering import RecovererActor
from buckram.sim.ledgers.workload.stage import Stage
from buckram.sim.ledgers.workload.writing import WriterActor
from buckram.types import LedgerId

SETTLE_S = 12.0
DEADLINE_S = 60.0
HUNG_DEADLINE_S = 40.0
LATE_S, COPIES_S = 0.05, 2.0
"""How much later a member sees metadata, and by when it must have its copies all the same."""
IDLE_S = 0.03
"""idle_lac_ms of the lives, a round trip and two syncs of the simulated disk. All of these are of fast lives (Pace)."""


async def clear_limbo(store: Store) -> None:
    store.clear_limbo(store.loss)


class Ending:
    def __init__(self, stage: Stage, faults: FaultRunner, actors: list[asyncio.Task[None]]) -> None:
        self.stage, self.world, self.plan, self.faults = stage, stage.world, stage.plan, faults
        self.judge, self.report = stage.world.judge, stage.world.report
        self.actors, self.pace = actors, stage.plan.pace
        self.hung: str | None = None

    async def run(self) -> None:
        await self._heal()
        await self._settle()
        first = RecovererActor(self.stage, "f1")
        client = await first.connect(20)
        if client is None:
            self.report.violate("L1", "no client can be started although everything was healed")
            return
        await self._recover_all(first)
        await self._tails_end()
        await self._wake_sleepers()
        await self._read_all(first, client)
        if self.plan.repairing and await self._repair_all(first):
            await self._leave_limbo(first)
        if self.plan.calm and self.hung is None:
            await self._calm(client)
        if self.plan.final_power_loss:
            await self._lose_power()
            await self._read_all(first, client)
        if self.plan.deleting:
            await self._delete_all(first)
        elif self.plan.again and self.hung is None:
            again = IdsAgain(self.stage, self._present())
            if again.possible():
                await again.run(first)
                await self._read_all(first, client)
        self.judge.life_ended()

    async def _heal(self) -> None:
        """Everything that can be undone is undone; writers that sleep into their ledger's end go on sleeping."""
        world, stage = self.world, self.stage
        world.trace.note("ending", "heals")
        sleepers = [
            host
            for host, process in world.processes.items()
            if process.paused and self.plan.late_wake and host.startswith("w")
        ]
        self.faults.heal()
        for host in world.processes:
            if host not in sleepers:
                world.resume(host)
        # A crash that is still set would come as a late surprise.
        for process in world.processes.values():
            process.crash_after(1 << 60)
        for machine in world.machines.values():
            if not machine.running and not self.judge.facts.bookie(machine.name).wiped:
                # Not too soon: a start asks metadata several questions.
                for _ in range(10 + round(self.plan.pace.patience(0.0, questions=12))):
                    await self.faults.restart(machine)
                    if machine.ready:
                        break
                    await asyncio.sleep(1.0)
                self.report.check(
                    "L1", machine.ready, "{} does not start although all is well: {}", machine.name, machine.refused
                )
        stage.over = True
        if self.plan.hung_for_good:
            self.hung = self._hang_one()

    def _hang_one(self) -> str | None:
        """L2: one member may hang for good if each write set still covers without it."""
        if any(
            self.judge.facts.bookie(name).wiped or self.judge.facts.bookie(name).damaged for name in self.world.machines
        ):
            return None
        name = self.faults.rng.choice(list(self.world.machines))
        self.world.pause(name)
        return name

    async def _settle(self) -> None:
        """Long enough for every timeout; then nothing may hang any more (L3, L4, L10)."""
        healed_at = self.world.loop.time() + 0.001
        await asyncio.sleep(self.pace.patience(SETTLE_S, syncs=20, questions=5))
        for _, process, _, handle in self.stage.writers:
            handle.died = process.dead
        if self.hung is None:
            self.judge.check_settled()
        for handle in self.judge.facts.handles:
            if handle.close_called_at is not None and not handle.died and self.world.steady(handle.client, healed_at):
                late = self.world.loop.time() - handle.close_called_at
                self.report.check("L10", False, "close of ledger {} takes {:.0f} s", handle.ledger, late)
            elif handle.closing:
                self.report.check("L10", True)

    def _present(self) -> list[LedgerId]:
        return [
            ledger.ledger
            for ledger in self.judge.facts.ledgers.values()
            if ledger.metadata is not None and not ledger.deleted
        ]

    async def _within(self, deadline_s: float, work: Awaitable[bool], invariant: str, what: str) -> bool:
        began = self.world.loop.time()
        try:
            async with asyncio.timeout(self.pace.patience(deadline_s, syncs=200, questions=30)):
                ok = await work
        except TimeoutError:
            ok = False
        self.report.check(invariant, ok, "{} was not done within {:.1f} s", what, self.world.loop.time() - began)
        return ok

    async def _recover_all(self, first: RecovererActor) -> None:
        """L1: somebody closes each ledger; L5: two at the same time both succeed."""
        second = RecovererActor(self.stage, "f2")
        twice = self.faults.rng.random() < 0.3 and await second.connect(20) is not None
        for ledger_id in self._present():
            work = [self._persist(first, ledger_id)]
            if twice:
                work.append(self._persist(second, ledger_id))
            invariant = "L2" if self.hung else "L1"
            deadline = HUNG_DEADLINE_S if self.hung else DEADLINE_S

            async def both(work: list[Awaitable[bool]] = work) -> bool:  # type: ignore[assignment]  # coroutines
                return all(await asyncio.gather(*work))

            ok = await self._within(deadline, both(), invariant, f"recovery of ledger {ledger_id}")
            self.report.check("L1", ok or not self.plan_allows_closing(), "ledger {} cannot be closed", ledger_id)
            if twice:
                self.report.check("L5", ok, "one of two recoveries of ledger {} failed", ledger_id)

    def plan_allows_closing(self) -> bool:
        return not self.plan.liar

    async def _persist(self, actor: RecovererActor, ledger_id: LedgerId) -> bool:
        """A recovery may fail on the remains of the faults; a few attempts later it must succeed."""
        for _ in range(6):
            client = actor.client
            assert client is not None
            if await actor.recover(client, ledger_id):
                return True
            if self.judge.facts.ledger(ledger_id).deleted:
                return True
            await asyncio.sleep(1.0)
        return False

    async def _tails_end(self) -> None:
        """L6: a tail whose ledger is closed delivers the rest and ends."""
        for task in self.stage.tails:
            process = getattr(task, "process", None)
            if process is None or process.dead or process.paused or task.done():
                continue
            over = asyncio.Event()
            task.add_done_callback(lambda _, over=over: over.set(), context=self.world.loop.world.context)  # type: ignore[misc]
            try:
                async with asyncio.timeout(self.pace.patience(DEADLINE_S, syncs=200, questions=30)):
                    await over.wait()
            except TimeoutError:
                self.report.check("L6", False, "a tail of {} does not end although its ledger is closed", process.name)
            else:
                self.report.check("L6", True)

    async def _wake_sleepers(self) -> None:
        """Stale writers go on where they were stopped: nothing they do may be acknowledged now (S1, F11)."""
        woken = [
            host for host, process in self.world.processes.items() if process.paused and host not in self.world.machines
        ]
        for host in woken:
            self.world.resume(host)
        if woken:
            await asyncio.sleep(self.pace.patience(SETTLE_S, syncs=20, questions=5))
        writers = [
            (host, process, writer, handle)
            for host, process, writer, handle in self.stage.writers
            if not process.dead and not writer.closed
        ]
        for host, process, writer, handle in writers:
            if self.judge.facts.ledger(handle.ledger).closed is None:
                continue
            payload = f"{host}/late/".encode()
            index = self.judge.submit(handle, [payload], [None if not handle.explicit else 10_000])

            async def late(writer=writer, handle=handle, index=index, payload=payload) -> None:  # type: ignore[no-untyped-def]
                try:
                    entry = await writer.append(payload, entry_id=10_000 if handle.explicit else None)
                except BuckramError as error:
                    self.judge.failed(handle, index, error)
                else:
                    self.judge.acked(handle, index, entry)

            process.spawn(late(), "late append")
        if writers:
            await asyncio.sleep(self.pace.patience(5.0, syncs=10, questions=5))

    async def _read_all(self, actor: RecovererActor, client: Client) -> None:
        """S19, L11: every closed ledger in full, from a client that knows nothing of it."""
        for ledger_id in self._present():
            closed = self.judge.facts.ledger(ledger_id).closed
            if closed is None:
                continue
            end = closed[0]

            async def work(ledger_id: LedgerId = ledger_id, last: int = end) -> bool:
                reader = await client.open(ledger_id, password=self.plan.password)
                error = ""
                for left in range(self.plan.bookies, -1, -1):
                    if last < 0:
                        break
                    # An attempt may meet a connection that died with its bookie: retryable, says the error. Where an
                    # entry has one copy each bookie's connection is met by itself.
                    kind = "unconfirmed" if left else "final"
                    result = await read_and_judge(actor, reader, kind, 0, last, lambda: reader.read(0, last))
                    error = result.error
                    if not error:
                        result.kind = "final"
                        actor.judge.read_done(ledger_id, result)
                        break
                await reader.close()
                return not error

            try:
                await self._within(
                    DEADLINE_S,
                    self.world.join(actor.process, work(), "final read"),
                    "L11",
                    f"final read of ledger {ledger_id}",
                )
            except NoSuchLedger:
                continue
            except (BuckramError, Died) as error:
                self.report.check("S19", False, "ledger {} cannot be opened: {!r}", ledger_id, error)

    async def _calm(self, client: Client) -> None:
        """L7: nothing is wrong any more; what a writer wrote last is readable soon although it writes nothing else."""
        if sum(machine.ready for machine in self.world.machines.values()) < self.plan.shape[0] or self.plan.liar:
            return
        last = WriterActor(self.stage, "w9")
        if await last.connect(5) is None:
            return

        idle_s = self.pace.patience(IDLE_S, syncs=4)

        async def idle() -> LedgerId:
            writer = await self._two_entries(last)
            await asyncio.sleep(idle_s)
            return writer.ledger_id

        async def look(ledger_id: LedgerId) -> int:
            reader = await client.open(ledger_id)
            await reader.close()
            return reader.last_confirmed

        try:
            ledger_id = await self.world.join(last.process, idle(), "idle writer")
            lac = await self.world.join(self.world.processes["f1"], look(ledger_id), "look")
        except (BuckramError, Died) as error:
            last.note(f"no calm: {error!r}")
            return
        self.report.check(
            "L7",
            lac == 1,
            "{} s after its ack the last entry of ledger {} is not readable, LAC {}",
            idle_s,
            ledger_id,
            lac,
        )
        await self._short(last)

    async def _two_entries(self, last: WriterActor) -> Writer:
        """A ledger with two acknowledged entries."""
        assert last.client is not None
        plan = self.plan
        writer = await last.client.create(
            ensemble=plan.shape, digest=plan.digest, password=plan.password, custom_metadata={"op": last.host}
        )
        handle = self.judge.opened_writer(last.host, writer.ledger_id, explicit=False, deferred=False)
        for _ in range(2):
            last._append(writer, handle, last._payload(), None, nowait=True)
            last.sent += 1
        await writer.flush()
        return writer

    async def _short(self, last: WriterActor) -> None:
        """L14: a ledger is closed before a member has looked at its metadata, which is far from there.

        So far that the look, which asks several times, takes longer than a request may is the same as out of reach.
        """
        if self.pace.patience(0.0, questions=6) >= self.plan.configs.net.request_timeout_s:
            return
        late = self.world.rng.choice([name for name, machine in self.world.machines.items() if machine.ready])
        self.world.fabric.slow(late, HOST, LATE_S)

        async def write() -> Writer:
            writer = await self._two_entries(last)
            await writer.close()
            return writer

        try:
            writer = await self.world.join(last.process, write(), "short ledger")
        except (BuckramError, Died) as error:
            last.note(f"no short ledger: {error!r}")
            return
        finally:
            self.world.fabric.slow(late, HOST, 0)
        await asyncio.sleep(self.pace.patience(COPIES_S, syncs=10, questions=3))
        ledger = self.judge.facts.ledger(writer.ledger_id)
        for entry in range(2):
            for member in write_set(writer.metadata, entry):
                machine = self.world.machines[member]
                store = machine.bookie.store if machine.bookie is not None and machine.ready else None
                if store is not None and store.is_writable and not store.limbo:
                    self.report.check(
                        "L14",
                        member in ledger.claims.get(entry, {}),
                        "{} never got entry {} of ledger {}",
                        member,
                        entry,
                        writer.ledger_id,
                    )

    async def _leave_limbo(self, actor: RecovererActor) -> None:
        """L13: every ledger has been repaired and the operator says so; absent entries are denied again."""
        assert actor.client is not None
        client = actor.client
        for machine in self.world.machines.values():
            store = machine.bookie.store if machine.bookie is not None and machine.ready else None
            if store is None or not store.limbo or machine.process is None:
                continue
            await self.world.join(machine.process, clear_limbo(store), "operator")
            for ledger_id in self._present():
                reply = await self.world.join(
                    actor.process, client.services.pool.call(machine.name, Read(ledger_id, 1 << 40)), "ask"
                )
                self.report.check(
                    "L13",
                    reply.code.explicit_negative,
                    "{} answers {} to an entry that never was",
                    machine.name,
                    reply.code.name,
                )

    async def _repair_all(self, actor: RecovererActor) -> bool:
        """L12: with enough bookies a closed ledger gets all its copies back. True if all did."""
        assert actor.client is not None
        all_healthy = True
        for ledger_id in self._present():
            healthy = False
            for _ in range(4):
                healthy = await actor.repair(actor.client, ledger_id)
                if healthy:
                    break
                await asyncio.sleep(1.0)
            all_healthy = all_healthy and healthy
            usable = sum(machine.ready for machine in self.world.machines.values())
            if usable >= self.plan.shape[0] and not self.plan.racks and self.hung is None:
                self.report.check(
                    "L12", healthy, "ledger {} is not repaired although {} bookies are there", ledger_id, usable
                )
        return all_healthy

    async def _lose_power(self) -> None:
        """All bookies at once; what was acknowledged is on the disks (M4, M2)."""
        for machine in self.world.machines.values():
            self.world.crash(machine, power=True)
        for machine in self.world.machines.values():
            if not self.judge.facts.bookie(machine.name).wiped:
                await self.faults.restart(machine)
        self.hung = None
        # Another restart of the same machine may have been under way and may be napping still.
        due = [machine for machine in self.world.machines.values() if not self.judge.facts.bookie(machine.name).wiped]
        for _ in range(20):
            await asyncio.sleep(1.0)
            if all(machine.ready for machine in due):
                break
        await asyncio.sleep(self.pace.patience(2.0, syncs=10, questions=2))

    async def _delete_all(self, actor: RecovererActor) -> None:
        """Delete what is left; with collection on, the bookies then drop it (F17)."""
        assert actor.client is not None
        for ledger_id in self._present():
            await actor.delete(actor.client, ledger_id)
        if self.plan.collecting:
            await asyncio.sleep(self.pace.patience(30.0, syncs=100, questions=20))
