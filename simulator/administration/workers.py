"""Clients beside the administrator: one writes ledgers, one reads them, one deletes them."""

from __future__ import annotations

import asyncio
import random

from buckram.client.write import writer as ledger_writer
from buckram.cluster import Client
from buckram.errors import BuckramError, NoSuchLedger
from buckram.types import LedgerId
from simulator.administration.rules import Written
from simulator.administration.stage import Stage
from simulator.engine.checkers.facts import Handle
from simulator.engine.world import Died


class Writer:
    """A host that writes ledgers, one after the other; each is closed, or left open by a process that dies."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.host = stage, stage.world, host
        self.judge = stage.world.judge
        self.rng = random.Random(f"{stage.admin.seed} {host}")
        self._ledger: LedgerId | None = None
        self._handle: Handle | None = None

    async def run(self) -> None:
        left = self.stage.admin.ledgers
        while left and not self.stage.over:
            try:
                client = await self.world.client(self.host)
                await self.world.join(self.world.processes[self.host], self._write(client), "writer")
                left -= 1
            except (BuckramError, Died) as error:
                self.world.trace.note(self.host, f"ends: {error!r}")
                left -= self._ledger is not None
            self._end()
            await self.stage.nap(self.rng, self.stage.plan.busy_s)

    def _end(self) -> None:
        process = self.world.processes.get(self.host)
        if process is not None and not process.dead:
            process.crash()
        if self._handle is not None:
            self._handle.died = True
        if self._ledger is not None:
            self.stage.written[self._ledger].writer_lives = False
        self._ledger = self._handle = None

    async def _write(self, client: Client) -> None:
        plan = self.stage.plan
        writer = await client.create(ensemble=plan.shape, digest=plan.digest, password=b"")
        self._ledger = writer.ledger_id
        new = writer.ledger_id not in self.stage.written
        self.world.report.check("ids", new, "{} got ledger {}, which was there before", self.host, writer.ledger_id)
        written = self.stage.written[writer.ledger_id] = Written()
        self._handle = self.judge.opened_writer(self.host, writer.ledger_id, explicit=False, deferred=False)
        for number in range(plan.entries):
            await self._append(writer, written, number)
            await asyncio.sleep(self.rng.random() * 2 * plan.busy_s / plan.entries)
        if self.rng.random() < 0.75:
            self._handle.closing = True
            await writer.close()

    async def _append(self, writer: ledger_writer.Writer, written: Written, number: int) -> None:
        assert self._handle is not None
        payload = f"{self.host}/{number}/".encode() + self.rng.randbytes(self.rng.choice((0, 100, 3000)))
        index = self.judge.submit(self._handle, [payload], [None])
        try:
            entry = await writer.append(payload)
        except BuckramError as error:
            self.judge.failed(self._handle, index, error)
            raise
        self.judge.acked(self._handle, index, entry)
        written.acked[entry] = payload
        written.acked_at[entry] = self.world.loop.time()


class _Client:
    """A host whose client does one thing now and then, until the life ends."""

    what = ""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.host = stage, stage.world, host
        self.rng = random.Random(f"{stage.admin.seed} {host}")

    async def run(self) -> None:
        while not self.stage.over:
            try:
                client = await self.world.client(self.host)
                await self.world.join(self.world.processes[self.host], self._work(client), self.what)
            except (BuckramError, Died) as error:
                self.world.trace.note(self.host, f"ends: {error!r}")
            await self.stage.nap(self.rng, 5.0)

    async def _work(self, client: Client) -> None:
        while not self.stage.over:
            await self.stage.nap(self.rng, self.stage.plan.busy_s)
            ledgers = [one for one, written in self.stage.written.items() if not written.delete_asked]
            if ledgers and not self.stage.over:
                await self.act(client, self.rng.choice(ledgers))

    async def act(self, client: Client, ledger: LedgerId) -> None:
        raise NotImplementedError


class Reader(_Client):
    """Reads confirmed entries, and compares them with what was written."""

    what = "reader"

    async def act(self, client: Client, ledger: LedgerId) -> None:
        try:
            async with await client.open(ledger, password=b"") as reader:
                found = await reader.read(0, reader.last_confirmed) if reader.last_confirmed >= 0 else []
        except BuckramError as error:
            self.world.trace.note(self.host, f"ledger {ledger}: {error!r}")
            return
        self.world.report.situation("a reader read")
        acked = self.stage.written[ledger].acked
        wrong = [one.entry_id for one in found if acked.get(one.entry_id, one.payload) != bytes(one.payload)]
        self.world.report.check("kept", not wrong, "{} read other entries {} of ledger {}", self.host, wrong, ledger)


class Deleter(_Client):
    """Deletes closed ledgers, a few of them."""

    what = "deleter"

    def __init__(self, stage: Stage, host: str) -> None:
        super().__init__(stage, host)
        self._left = 2

    async def act(self, client: Client, ledger: LedgerId) -> None:
        written = self.stage.written[ledger]
        metadata = self.stage.rules.metadata(ledger)
        if not self._left or metadata is None or not metadata.closed:
            return
        self._left -= 1
        written.delete_asked = True
        self.world.judge.recovery_started(self.host, ledger)
        try:
            await client.delete(ledger, password=b"")
        except NoSuchLedger:
            pass
        finally:
            self.world.judge.recovery_ended(self.host, ledger, None, None)
        written.deleted, written.deleted_at = True, self.world.loop.time()
        self.world.judge.facts.ledger(ledger).delete_returned = True
        self.world.report.situation("a ledger was deleted")
