"""A writer: it creates one ledger and appends to it by all kinds of calls."""

from __future__ import annotations

import asyncio

from buckram.client.write.writer import Writer, engine_of
from buckram.cluster import Client
from buckram.errors import BuckramError, BufferFull, QuotaExceeded
from buckram.types import EntryId
from simulator.engine.checkers.facts import Handle
from simulator.engine.checkers.judge import describe
from simulator.engine.world import Died
from simulator.ledgers.workload.stage import Actor, OpenedWriter, Stage

NAP_FACTOR = 6.0
"""Factor of a writer's pauses with which writing lasts about as long as faults begin; a step appends two to three
entries."""


class WriterActor(Actor):
    """Creates one ledger and appends to it by all kinds of calls."""

    def __init__(self, stage: Stage, host: str) -> None:
        super().__init__(stage, host)
        self.sent = 0

    async def run(self) -> None:
        await self.nap(0.05)
        client = await self.connect()
        if client is None:
            return
        try:
            await self.world.join(self.process, self.work(client), "application")
        except Died:
            self.note("died")

    async def work(self, client: Client) -> None:
        plan = self.plan
        self.judge.facts.enforced[self.host] = plan.racks
        try:
            writer = await client.create(
                ensemble=plan.shape,
                digest=plan.digest,
                password=plan.password,
                custom_metadata={"op": self.host},
                explicit_ids=plan.explicit,
                deferred_sync=plan.deferred,
            )
        except BuckramError as error:
            self.note(f"create failed: {describe(error)}")
            return
        self.note(f"created ledger {writer.ledger_id} on {writer.metadata.last_fragment.ensemble}")
        self.check_absent_bookies(writer)
        racks = plan.racks
        handle = self.judge.opened_writer(
            self.host, writer.ledger_id, explicit=plan.explicit, deferred=plan.deferred, racks=racks
        )
        self.stage.ledgers.append(writer.ledger_id)
        self.stage.writers.append(OpenedWriter(self.host, self.process, writer, handle))
        ids = self._ids(plan.entries)
        while self.sent < plan.entries and not self.stage.over:
            await self._step(writer, handle, ids)
            self._report_lac(writer, handle)
            await self.nap(min(plan.busy_s, NAP_FACTOR * plan.busy_s / max(1, plan.entries)))
        await self._finish(writer, handle)

    def check_absent_bookies(self, writer: Writer) -> None:
        """Check M11: if some of the ensemble are absent at a create, enough bookies of each write set are available."""
        metadata, absent = writer.metadata, engine_of(writer)._window.absent
        if not absent:
            return
        self.world.report.situation("a ledger made with a member away")
        quorum, ensemble = engine_of(writer)._window.quorum, metadata.last_fragment.ensemble
        present = [[ensemble[p] for p in window if p not in absent] for window in quorum.windows()]
        racks = [{self.judge.facts.bookie(b).rack for b in members} for members in present]
        few = len(absent) <= quorum.write_quorum - quorum.ack_quorum
        known = all(bookie in self.world.machines for bookie in absent.values())
        spread = not self.plan.racks or all(len(found) >= self.plan.racks for found in racks)
        self.world.report.check(
            "M11",
            few and known and spread and all(len(members) >= quorum.ack_quorum for members in present),
            "ledger {} begins with {} away, of each write set {} are there",
            writer.ledger_id,
            absent,
            present,
        )

    def _ids(self, count: int) -> list[EntryId | None]:
        """Return the ids to append with: None for each, or explicit ones in a slightly shuffled order."""
        if not self.plan.explicit:
            return [None] * count
        ids: list[EntryId | None] = list(range(count))
        for at in range(0, count, 4):
            part = ids[at : at + 4]
            self.rng.shuffle(part)
            ids[at : at + 4] = part
        if count > 2 and self.rng.random() < 0.5:
            ids[self.rng.randrange(count)] = self.rng.randrange(count)  # a duplicate, and a gap
        return ids

    def next_payload(self) -> bytes:
        """Return a payload that occurs once in the life, because it begins with the host and a number."""
        size = self.rng.choice((4000, 9000) if self.plan.large else (0, 0, 10, 100, 100, 1500, 9000))
        return f"{self.host}/{self.sent}/".encode() + self.rng.randbytes(size)

    async def _step(self, writer: Writer, handle: Handle, ids: list[EntryId | None]) -> None:
        burst = min(self.rng.choice((1, 1, 2, 3, 6)), self.plan.entries - self.sent)
        first = self.sent
        payloads = []
        for _ in range(burst):
            payloads.append(self.next_payload())
            self.sent += 1
        if self.plan.entries > 2 and self.rng.random() < 0.04:
            payloads[0] = b""
        how = self.rng.random()
        if how < 0.15 and not self.plan.explicit:
            index = self.judge.submit(handle, payloads, [None] * burst)
            self.process.spawn(self._append_many(writer, handle, index, payloads), "append_many")
        else:
            for n, payload in enumerate(payloads):
                self.append(writer, handle, payload, ids[first + n], nowait=how < 0.6)
        if self.plan.deferred and self.rng.random() < 0.4:
            self.process.spawn(self._force(writer, handle), "force")
        if self.rng.random() < 0.15:
            self.process.spawn(self._flush(writer), "flush")

    def append(self, writer: Writer, handle: Handle, payload: bytes, entry_id: EntryId | None, *, nowait: bool) -> None:
        """Start one append in the client's process and report its end. `nowait`: by append_nowait if there is room."""
        index = self.judge.submit(handle, [payload], [entry_id])
        if nowait:
            try:
                future = writer.append_nowait(payload, entry_id=entry_id)
            except BufferFull:
                pass
            except BuckramError as error:
                self.judge.failed(handle, index, error)
                return
            else:
                future.add_done_callback(lambda done: self._report_append(handle, index, done))
                return
        task = self.process.spawn(writer.append(payload, entry_id=entry_id), "append")
        task.add_done_callback(lambda done: self._report_append(handle, index, done), context=self.process.context)

    def _report_append(self, handle: Handle, index: int, done: asyncio.Future[EntryId]) -> None:
        error = done.exception()
        if error is None:
            self.note(f"ledger {handle.ledger}: append {index} is entry {done.result()}")
            self.judge.acked(handle, index, done.result())
        else:
            self.note(f"ledger {handle.ledger}: append {index} failed: {describe(error)}: {error}")
            if isinstance(error, QuotaExceeded):
                self.world.report.situation("a quota ended a writer")
            self.judge.failed(handle, index, error)

    async def _append_many(self, writer: Writer, handle: Handle, index: int, payloads: list[bytes]) -> None:
        try:
            ids = await writer.append_many(payloads)
        except BuckramError as error:
            self.note(f"ledger {handle.ledger}: append_many {index} failed: {describe(error)}: {error}")
            for n in range(len(payloads)):
                self.judge.failed(handle, index + n, error)
        else:
            self.note(f"ledger {handle.ledger}: append_many {index} are entries {ids}")
            for n, entry in enumerate(ids):
                self.judge.acked(handle, index + n, entry)

    async def _flush(self, writer: Writer) -> None:
        try:
            await writer.flush()
        except BuckramError as error:
            self.note(f"flush failed: {describe(error)}")

    async def _force(self, writer: Writer, handle: Handle) -> None:
        acked = max(self.judge.facts.ledger(handle.ledger).acked, default=-1)
        try:
            head = await writer.force()
        except BuckramError as error:
            self.note(f"force failed: {describe(error)}")
            return
        self.note(f"ledger {handle.ledger}: force made {head} durable")
        self.world.report.check(
            "M2",
            head >= acked,
            "force of ledger {} returned {}, {} was acknowledged before",
            handle.ledger,
            head,
            acked,
        )
        self.judge.force_returned(handle, head)

    def _report_lac(self, writer: Writer, handle: Handle) -> None:
        before, handle.lac = handle.lac, writer.last_confirmed
        self.judge.lac_seen(writer.ledger_id, self.host, before, handle.lac)
        if writer.degraded:
            self.world.report.situation("writer degraded")

    async def _finish(self, writer: Writer, handle: Handle) -> None:
        roll = self.rng.random()
        if roll < 0.35:
            return
        wait = roll < 0.8
        if "pending" in handle.results:
            self.world.report.situation("close with pending adds")
        handle.closing, handle.close_called_at = True, self.world.loop.time()
        try:
            await writer.close(wait=wait)
        except BuckramError as error:
            self.note(f"ledger {writer.ledger_id}: close failed: {describe(error)}: {error}")
        else:
            self.note(f"ledger {writer.ledger_id}: closed")
        handle.close_called_at = None
