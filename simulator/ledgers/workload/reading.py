"""A reader: opens ledgers without recovering them, reads ranges, and tails."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from buckram.client.read.reader import Reader
from buckram.cluster import Client
from buckram.errors import BuckramError, NoSuchEntry
from buckram.types import Entry, EntryId, LedgerId
from simulator.engine.checkers.base import ReadResult
from simulator.engine.checkers.judge import describe
from simulator.engine.world import Died
from simulator.ledgers.workload.stage import Actor


class ReaderActor(Actor):
    """Opens ledgers without recovering them, and reads or tails them."""

    async def run(self) -> None:
        client = await self.connect()
        if client is None:
            return
        for _ in range(self.rng.choice((1, 2, 4))):
            await self.nap(self.plan.busy_s)
            if self.stage.over or not self.stage.ledgers:
                break
            ledger_id = self.rng.choice(self.stage.ledgers)
            try:
                await self.world.join(self.process, self.read_ledger(client, ledger_id), "application")
            except Died:
                self.note("died")
                return

    async def read_ledger(self, client: Client, ledger_id: LedgerId) -> None:
        """Open the ledger, then tail it or read some ranges, as code of the client's process."""
        try:
            reader = await client.open(ledger_id, password=self.plan.password)
        except BuckramError as error:
            self.note(f"open of ledger {ledger_id} failed: {describe(error)}: {error}")
            return
        lac = reader.last_confirmed
        self._report_lac(reader, -1, lac)
        if self.rng.random() < 0.5:
            self.stage.tails.append(self.process.spawn(self._tail(reader), "tail"))
            return
        for _ in range(self.rng.choice((1, 2, 3))):
            await self._read(reader)
            lac = self._report_lac(reader, lac, reader.last_confirmed)
            await self.nap(0.2)
        await reader.close()

    def _report_lac(self, reader: Reader, before: EntryId, now: EntryId) -> EntryId:
        self.judge.lac_seen(reader.ledger_id, self.host, before, now)
        return now

    async def _read(self, reader: Reader) -> None:
        top = max(reader.last_confirmed, 0)
        first = self.rng.randrange(top + 1)
        last = self.rng.choice((first, top, top, top + 1, self.plan.entries + 1))
        last = max(first, last)
        kind = self.rng.choice(("read", "read", "unconfirmed"))
        call = reader.read if kind == "read" else reader.read_unconfirmed
        await read_and_report(self, reader, kind, first, last, lambda: call(first, last))

    async def _tail(self, reader: Reader) -> None:
        start = self.rng.choice((0, 0, 0, max(0, reader.last_confirmed)))
        wanted, lac = start, reader.last_confirmed
        tail = reader.tail(start)
        try:
            async for entry in tail:
                ok = entry.entry_id == wanted
                self.world.report.check(
                    "S14",
                    ok,
                    "{}'s tail of ledger {} gave entry {}, wanted {}",
                    self.host,
                    reader.ledger_id,
                    entry.entry_id,
                    wanted,
                )
                wanted += 1
                lac = self._report_lac(reader, lac, reader.last_confirmed)
                self._report_entry(reader, start, entry, self._highest_known_lac(reader))
        except BuckramError as error:
            self.note(f"tail of ledger {reader.ledger_id} failed at {wanted}: {describe(error)}: {error}")
            return  # this is allowed while faults last; the ending checks the other tails (L6)
        facts = self.judge.facts.ledger(reader.ledger_id)
        self.note(f"tail of ledger {reader.ledger_id} ended before {wanted}")
        closed = facts.closed
        self.world.report.check(
            "S14",
            facts.deleted or (closed is not None and wanted >= closed[0] + 1),
            "{}'s tail of ledger {} ended at {}, the ledger's end is {}",
            self.host,
            reader.ledger_id,
            wanted,
            closed,
        )

    def _highest_known_lac(self, reader: Reader) -> EntryId:
        """Return the highest LAC that any message has proved. A tail, which follows the LAC, may not deliver more."""
        facts = self.judge.facts.ledger(reader.ledger_id)
        begins = facts.metadata.last_fragment.first_entry - 1 if facts.metadata is not None else -1
        return max(facts.max_lac, begins, facts.closed[0] if facts.closed else -1)

    def _report_entry(self, reader: Reader, first: EntryId, entry: Entry, lac: EntryId) -> None:
        row = (entry.entry_id, entry.payload, entry.length, entry.last_add_confirmed)
        self.judge.read_done(reader.ledger_id, ReadResult(self.host, "tail", first, entry.entry_id, lac, [row]))


class ReadEntries(Protocol):
    """One read of a client, ready to be called."""

    def __call__(self) -> Awaitable[list[Entry]]: ...


async def read_and_report(
    actor: Actor, reader: Reader, kind: str, first: EntryId, last: EntryId, call: ReadEntries
) -> ReadResult:
    """Run one read of the entries `first` to `last` and report its result to the judge.

    `kind` is that of the ReadResult.
    """
    before = reader.last_confirmed
    result = ReadResult(actor.host, kind, first, last, before, [], began_at=actor.world.loop.time())
    try:
        found = await call()
        result.entries = [(e.entry_id, e.payload, e.length, e.last_add_confirmed) for e in found]
    except BuckramError as error:
        result.error = describe(error)
        if isinstance(error, NoSuchEntry):
            known = max(before, reader.last_confirmed)
            result.error_entry = error.entry_id if kind == "unconfirmed" or error.entry_id <= known else None
        actor.note(f"{kind} of {first}-{last} of ledger {reader.ledger_id} failed: {describe(error)}: {error}")
    result.lac = max(before, reader.last_confirmed)
    actor.judge.read_done(reader.ledger_id, result)
    return result
