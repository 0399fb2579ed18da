"""Clients beside self-healing: one reads ledgers as they are written, one recovers them, one deletes them."""

from __future__ import annotations

import asyncio
import random

from buckram.client.read.reader import Reader as LedgerReader
from buckram.cluster import Client
from buckram.errors import BuckramError, NoSuchEntry
from buckram.types import EntryId, LedgerId
from simulator.engine.checkers.base import ReadResult
from simulator.engine.checkers.judge import describe
from simulator.engine.world import Died
from simulator.healing.workers import Stage


class Actor:
    """A host whose client does one thing now and then, until the life ends."""

    what = ""
    left = 1000
    """Number of acts that are left."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.host = stage, stage.world, host
        self.rng = random.Random(f"{stage.healing.seed} {host}")

    async def run(self) -> None:
        try:
            client = await self.world.client(self.host)
            await self.world.join(self.world.processes[self.host], self._work(client), self.what)
        except (BuckramError, Died) as error:
            self.world.trace.note(self.host, f"ends: {error!r}")

    async def _work(self, client: Client) -> None:
        while not self.stage.over and self.left:
            await asyncio.sleep(self.rng.random() * self.stage.plan.busy_s)
            if not self.stage.ledgers or self.stage.over:
                continue
            ledger = self.rng.choice(self.stage.ledgers)
            self.left -= 1
            try:
                await self.act(client, ledger)
            except BuckramError as error:
                self.world.trace.note(self.host, f"ledger {ledger}: {error!r}")

    async def act(self, client: Client, ledger: LedgerId) -> None:
        raise NotImplementedError


class Reader(Actor):
    """Reads confirmed entries, and compares them with what was written."""

    what = "reader"

    async def act(self, client: Client, ledger: LedgerId) -> None:
        reader = await client.open(ledger, password=b"")
        if self.rng.random() < 0.2 and ledger not in [one for _, one, _ in self.stage.tails]:
            task = self.world.processes[self.host].spawn(self._follow(reader, ledger), "tail")
            self.stage.tails.append((self.host, ledger, task))
            return
        try:
            if reader.last_confirmed >= 0:
                await self._read(reader, ledger)
                self.world.report.situation("a reader read beside healing")
        finally:
            await reader.close()

    async def _follow(self, reader: LedgerReader, ledger: LedgerId) -> None:
        """Follow the ledger to its end and compare each entry with what was written."""
        wanted = 0
        try:
            async for entry in reader.tail(0):
                known = self.stage.rules.written[ledger].acked.get(entry.entry_id)
                same = entry.entry_id == wanted and known in (None, bytes(entry.payload))
                text = "{} followed ledger {} to another entry {}"
                self.world.report.check("content", same, text, self.host, ledger, entry.entry_id)
                wanted += 1
            self.world.report.situation("a reader followed a ledger to its end")
        except BuckramError as error:
            self.world.trace.note(self.host, f"follows ledger {ledger} no further: {error!r}")

    async def _read(self, reader: LedgerReader, ledger: LedgerId) -> None:
        lac = reader.last_confirmed
        first = self.rng.randrange(lac + 1)
        self.world.judge.lac_seen(ledger, self.host, -1, lac)
        result = ReadResult(self.host, "read", first, lac, lac, [], began_at=self.world.loop.time())
        try:
            found = await reader.read(first, lac)
            result.entries = [(e.entry_id, e.payload, e.length, e.last_add_confirmed) for e in found]
        except BuckramError as error:
            result.error = describe(error)
            result.error_entry = error.entry_id if isinstance(error, NoSuchEntry) else None
            raise
        finally:
            self.world.judge.read_done(ledger, result)
        for entry in found:
            wanted = self.stage.rules.written[ledger].acked.get(entry.entry_id)
            same = wanted is None or bytes(entry.payload) == wanted
            text = "{} read another entry {} of ledger {}"
            self.world.report.check("content", same, text, self.host, entry.entry_id, ledger)


class Recoverer(Actor):
    """Recovers ledgers that others write."""

    what = "recoverer"

    async def act(self, client: Client, ledger: LedgerId) -> None:
        metadata = self.world.judge.facts.ledger(ledger).metadata
        if metadata is None or metadata.closed:
            return
        if self.stage.rules.is_marked(ledger):
            self.world.report.situation("a marked ledger was recovered by another")
        last: EntryId | None = None
        length = 0
        self.world.judge.recovery_started(self.host, ledger)
        try:
            reader = await client.recover(ledger, password=b"")
            last, length = reader.last_confirmed, reader.length or 0
            await reader.close()
        finally:
            self.world.judge.recovery_ended(self.host, ledger, last, length)
        await asyncio.sleep(self.stage.plan.busy_s)


class Deleter(Actor):
    """Deletes ledgers, preferably those that healing works on."""

    what = "deleter"
    left = 3

    async def act(self, client: Client, ledger: LedgerId) -> None:
        marked = [one for one in self.stage.ledgers if self.stage.rules.is_marked(one)]
        ledger = self.rng.choice(marked) if marked and self.rng.random() < 0.5 else ledger
        if self.world.judge.facts.ledger(ledger).metadata is None:
            return
        if self.stage.rules.is_marked(ledger):
            self.world.report.situation("a marked ledger was deleted")
        self.world.judge.recovery_started(self.host, ledger)
        try:
            await client.delete(ledger, password=b"")
            self.world.judge.facts.ledger(ledger).delete_returned = True
        finally:
            self.world.judge.recovery_ended(self.host, ledger, None, None)
        await asyncio.sleep(self.stage.plan.busy_s * 2)
