"""The end of a life: faults are healed, ledgers are recovered and read in full, paused writers go on too late.

The ending checks liveness by deadlines (L1 to L3, L5, L6, L10 to L13), and then the final state.

Not here: a writer that begins when all faults are over (`last_writer.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from buckram.bookie.storage.store import Store
from buckram.cluster import Client
from buckram.core.wire.messages import Read
from buckram.errors import BuckramError, NoSuchLedger
from buckram.types import LedgerId
from simulator.engine.faults import FaultRunner
from simulator.engine.finish import Finish
from simulator.engine.world import Died
from simulator.ledgers.last_writer import LastWriter
from simulator.ledgers.reused_ids import ReusedIds
from simulator.ledgers.tenants import Tenants
from simulator.ledgers.workload.reading import read_and_report
from simulator.ledgers.workload.recovering import RecovererActor
from simulator.ledgers.workload.stage import Stage

SETTLE_S = 12.0
DEADLINE_S = 60.0
HUNG_DEADLINE_S = 40.0
"""Wait after faults were healed, deadline, and deadline of a recovery with a hung bookie, seconds; all of fast lives
(`Pace.deadline_s`)."""


async def clear_limbo(store: Store) -> None:
    """Confirm, as an operator, that the data of a bookie in limbo was repaired. Runs in the bookie's process."""
    store.clear_limbo(store.loss)


class Ending(Finish):
    """Ends one life. `hung` is the bookie that stays paused, if any."""

    def __init__(self, stage: Stage, faults: FaultRunner, tenants: Tenants, actors: list[asyncio.Task[None]]) -> None:
        super().__init__(stage, faults)
        self.stage, self.plan, self.judge = stage, stage.plan, stage.world.judge
        self.tenants, self.actors, self.pace = tenants, actors, stage.plan.pace
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
        await self._await_tails()
        await self._resume_late_writers()
        await self._read_all(first, client)
        await self.tenants.lift_quotas()
        if self.plan.repairing and await self._repair_all(first):
            await self._clear_limbo(first)
        if self.plan.calm and self.hung is None:
            await LastWriter(self.stage).check(client)
        if self.plan.final_power_loss:
            await self._lose_power()
            await self._read_all(first, client)
        if self.plan.deleting:
            await self._delete_all(first)
        elif self.plan.again and self.hung is None:
            again = ReusedIds(self.stage, self._present())
            if again.possible():
                await again.run(first)
                await self._read_all(first, client)
        self.judge.life_ended()

    async def _heal(self) -> None:
        """End all faults and restart bookies. With `late_wake`, paused writers stay paused until ledgers are closed."""
        world, stage = self.world, self.stage
        world.trace.note("ending", "heals")
        late_writers = [
            host
            for host, process in world.processes.items()
            if process.paused and self.plan.late_wake and host.startswith("w")
        ]
        self.faults.heal()
        for host in world.processes:
            if host not in late_writers:
                world.resume(host)
        # A crash that is still planned would be a new fault.
        for process in world.processes.values():
            process.crash_after(1 << 60)
        # A start reads metadata several times, which may be slow.
        await self.revive("L1", 10 + round(self.plan.pace.deadline_s(0.0, metadata_requests=12)))
        stage.over = True
        if self.plan.hung_for_good:
            self.hung = self._hang_one()

    def _hang_one(self) -> str | None:
        """Pause one bookie for good, unless others have lost data (L2). Return its name."""
        if any(
            self.judge.facts.bookie(name).wiped or self.judge.facts.bookie(name).damaged for name in self.world.machines
        ):
            return None
        name = self.faults.rng.choice(list(self.world.machines))
        self.world.pause(name)
        return name

    async def _settle(self) -> None:
        """Wait longer than every time-out; then no call may be pending any more (L3, L4, L10)."""
        healed_at = self.world.loop.time() + 0.001
        await asyncio.sleep(self.pace.deadline_s(SETTLE_S, syncs=20, metadata_requests=5))
        for opened in self.stage.writers:
            opened.handle.died = opened.process.dead
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
            async with asyncio.timeout(self.pace.deadline_s(deadline_s, syncs=200, metadata_requests=30)):
                ok = await work
        except TimeoutError:
            ok = False
        self.report.check(invariant, ok, "{} was not done within {:.1f} s", what, self.world.loop.time() - began)
        return ok

    async def _recover_all(self, first: RecovererActor) -> None:
        """Check L1, L2: each ledger can be recovered; L5: two recoveries at the same time both succeed."""
        second = RecovererActor(self.stage, "f2")
        twice = self.faults.rng.random() < 0.3 and await second.connect(20) is not None
        for ledger_id in self._present():
            work = [self._recover_with_retries(first, ledger_id)]
            if twice:
                work.append(self._recover_with_retries(second, ledger_id))
            invariant = "L2" if self.hung else "L1"
            deadline = HUNG_DEADLINE_S if self.hung else DEADLINE_S

            async def both(work: list[Awaitable[bool]] = work) -> bool:  # type: ignore[assignment]  # coroutines
                return all(await asyncio.gather(*work))

            ok = await self._within(deadline, both(), invariant, f"recovery of ledger {ledger_id}")
            self.report.check("L1", ok or self.plan.liar, "ledger {} cannot be closed", ledger_id)
            if twice:
                self.report.check("L5", ok, "one of two recoveries of ledger {} failed", ledger_id)

    async def _recover_with_retries(self, actor: RecovererActor, ledger_id: LedgerId) -> bool:
        """Recover the ledger in at most six attempts: the first ones may meet connections that faults have broken."""
        for _ in range(6):
            client = actor.client
            assert client is not None
            if await actor.recover(client, ledger_id):
                return True
            if self.judge.facts.ledger(ledger_id).deleted:
                return True
            await asyncio.sleep(1.0)
        return False

    async def _await_tails(self) -> None:
        """Check L6: a tail delivers the rest of its ledger and ends once the ledger is closed."""
        for task in self.stage.tails:
            process = getattr(task, "process", None)
            if process is None or process.dead or process.paused or task.done():
                continue
            over = asyncio.Event()
            task.add_done_callback(lambda _, over=over: over.set(), context=self.world.loop.world.context)  # type: ignore[misc]
            try:
                async with asyncio.timeout(self.pace.deadline_s(DEADLINE_S, syncs=200, metadata_requests=30)):
                    await over.wait()
            except TimeoutError:
                self.report.check("L6", False, "a tail of {} does not end although its ledger is closed", process.name)
            else:
                self.report.check("L6", True)

    async def _resume_late_writers(self) -> None:
        """Resume paused writers whose ledger is closed: none of their entries may be acknowledged now (S1, F11)."""
        resumed = [
            host for host, process in self.world.processes.items() if process.paused and host not in self.world.machines
        ]
        for host in resumed:
            self.world.resume(host)
        if resumed:
            await asyncio.sleep(self.pace.deadline_s(SETTLE_S, syncs=20, metadata_requests=5))
        writers = [opened for opened in self.stage.writers if not opened.process.dead and not opened.writer.closed]
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
            await asyncio.sleep(self.pace.deadline_s(5.0, syncs=10, metadata_requests=5))

    async def _read_all(self, actor: RecovererActor, client: Client) -> None:
        """Read every closed ledger in full, with a client that opens it for the first time (S19, L11)."""
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
                    # An attempt may meet a broken connection to a bookie that died, a retryable error. Where each entry
                    # has one copy, each attempt may meet only one such connection.
                    kind = "unconfirmed" if left else "final"
                    result = await read_and_report(actor, reader, kind, 0, last, lambda: reader.read(0, last))
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

    async def _clear_limbo(self, actor: RecovererActor) -> None:
        """Check L13: after all repairs and an operator's confirmation, bookies deny absent entries again."""
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
                    "{} answers {} to a read of an entry that does not exist",
                    machine.name,
                    reply.code.name,
                )

    async def _repair_all(self, actor: RecovererActor) -> bool:
        """Repair all ledgers (L12). With enough bookies each must get all its copies back; return whether all did."""
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
        """Cut the power of all bookies at once: acknowledged entries must be on the disks (M4, M2)."""
        for machine in self.world.machines.values():
            self.world.crash(machine, power=True)
        for machine in self.world.machines.values():
            if not self.judge.facts.bookie(machine.name).wiped:
                await self.faults.restart(machine)
        self.hung = None
        # Another restart of the same machine may be under way, and still wait.
        expected = [
            machine for machine in self.world.machines.values() if not self.judge.facts.bookie(machine.name).wiped
        ]
        for _ in range(20):
            await asyncio.sleep(1.0)
            if all(machine.ready for machine in expected):
                break
        await asyncio.sleep(self.pace.deadline_s(2.0, syncs=10, metadata_requests=2))

    async def _delete_all(self, actor: RecovererActor) -> None:
        """Delete all ledgers; bookies then drop their data if garbage collection is on (F17)."""
        assert actor.client is not None
        for ledger_id in self._present():
            await actor.delete(actor.client, ledger_id)
        if self.plan.collecting:
            await asyncio.sleep(self.pace.deadline_s(30.0, syncs=100, metadata_requests=20))
