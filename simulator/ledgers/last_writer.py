"""A writer that begins after all faults were healed: its entries become readable soon, and all copies are written.

Not here: the other steps of a life's end (`ending.py`).
"""

from __future__ import annotations

import asyncio

from buckram.client.write.writer import Writer
from buckram.cluster import Client
from buckram.errors import BuckramError
from buckram.types import LedgerId
from simulator.engine.checkers.facts import write_set
from simulator.engine.metadata import HOST
from simulator.engine.world import Died
from simulator.ledgers.workload.stage import Stage
from simulator.ledgers.workload.writing import WriterActor

LATE_S, COPIES_S = 0.05, 2.0
"""Added delay of one bookie's metadata, and deadline of its copies nevertheless, seconds."""
IDLE_S = 0.03
"""idle_lac_ms of the lives, a round trip and two syncs of the simulated disk. All are of fast lives (`Pace`)."""


class LastWriter:
    """Checks L7 and L14 at the end of one life."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._world, self._plan, self._pace = stage, stage.world, stage.plan, stage.plan.pace
        self._judge, self._report = stage.world.judge, stage.world.report

    async def check(self, client: Client) -> None:
        """Check L7 (the last entry of an idle writer becomes readable soon), then L14. `client` is that of host f1."""
        if sum(machine.ready for machine in self._world.machines.values()) < self._plan.shape[0] or self._plan.liar:
            return
        last = WriterActor(self._stage, "w9")
        if await last.connect(5) is None:
            return

        idle_s = self._pace.deadline_s(IDLE_S, syncs=4)

        async def idle() -> LedgerId:
            writer = await self._two_entries(last)
            await asyncio.sleep(idle_s)
            return writer.ledger_id

        async def read_lac(ledger_id: LedgerId) -> int:
            reader = await client.open(ledger_id)
            await reader.close()
            return reader.last_confirmed

        try:
            ledger_id = await self._world.join(last.process, idle(), "idle writer")
            lac = await self._world.join(self._world.processes["f1"], read_lac(ledger_id), "look")
        except (BuckramError, Died) as error:
            last.note(f"no calm: {error!r}")
            return
        self._report.check(
            "L7",
            lac == 1,
            "{} s after its ack the last entry of ledger {} is not readable, LAC {}",
            idle_s,
            ledger_id,
            lac,
        )
        await self._check_late_metadata(last)

    async def _two_entries(self, last: WriterActor) -> Writer:
        """Create a ledger with two acknowledged entries."""
        assert last.client is not None
        plan = self._plan
        writer = await last.client.create(
            ensemble=plan.shape, digest=plan.digest, password=plan.password, custom_metadata={"op": last.host}
        )
        handle = self._judge.opened_writer(last.host, writer.ledger_id, explicit=False, deferred=False)
        for _ in range(2):
            last.append(writer, handle, last.next_payload(), None, nowait=True)
            last.sent += 1
        await writer.flush()
        return writer

    async def _check_late_metadata(self, last: WriterActor) -> None:
        """Check L14: close a ledger before one of its bookies, with a slow link to the store, could read its metadata.

        A bookie that needs longer than a request may take counts as unreachable, so nothing is checked then.
        """
        if self._pace.deadline_s(0.0, metadata_requests=6) >= self._plan.configs.net.request_timeout_s:
            return
        late = self._world.rng.choice([name for name, machine in self._world.machines.items() if machine.ready])
        self._world.fabric.slow(late, HOST, LATE_S)

        async def write() -> Writer:
            writer = await self._two_entries(last)
            await writer.close()
            return writer

        try:
            writer = await self._world.join(last.process, write(), "short ledger")
        except (BuckramError, Died) as error:
            last.note(f"no short ledger: {error!r}")
            return
        finally:
            self._world.fabric.slow(late, HOST, 0)
        await asyncio.sleep(self._pace.deadline_s(COPIES_S, syncs=10, metadata_requests=3))
        ledger = self._judge.facts.ledger(writer.ledger_id)
        for entry in range(2):
            for member in write_set(writer.metadata, entry):
                machine = self._world.machines[member]
                store = machine.bookie.store if machine.bookie is not None and machine.ready else None
                if store is not None and store.is_writable and not store.limbo:
                    self._report.check(
                        "L14",
                        member in ledger.claims.get(entry, {}),
                        "{} did not get entry {} of ledger {}",
                        member,
                        entry,
                        writer.ledger_id,
                    )
