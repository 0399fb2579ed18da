"""A reader: opens ledgers without recovering them, reads ranges, and tails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from buckram.client.client import Client
from buckram.client.read.reader import Reader
from buckram.errors import BuckramError, NoSuchEntry
from buckram.sim.engine.checkers.base import ReadResult
from buckram.sim.engine.checkers.judge import describe
from buckram.sim.engine.world import Died
from buckram.sim.ledgers.workload.stage import Actor
from buckram.types import Entry, EntryId, LedgerId


class ReaderActor(Actor):
    """Opens ledgers without recovering them; reads, and tails."""

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
                await self.world.join(self.process, self._visit(client, ledger_id), "application")
            except Died:
                self.note("died")
                return

    async def _visit(self, client: Client, ledger_id: LedgerId) -> None:
        try:
            reader = await client.open(ledger_id, password=self.plan.password)
        except BuckramError as error:
            self.note(f"open of ledger {ledger_id} failed: {describe(error)}: {error}")
            return
        lac = reader.last_confirmed
        self._lac(reader, -1, lac)
        if self.rng.random() < 0.5:
            self.stage.tails.append(self.process.spawn(self._tail(reader), "tail"))
            return
        for _ in range(self.rng.choice((1, 2, 3))):
            await self._read(reader)
            lac = self._lac(reader, lac, reader.last_confirmed)
            await self.nap(0.2)
        await reader.close()

    def _lac(self, reader: Reader, before: EntryId, now: EntryId) -> EntryId:
        self.judge.lac_seen(reader.ledger_id, self.host, before, now)
        return now

    async def _read(self, reader: Reader) -> None:
        top = max(reader.last_confirmed, 0)
        first = self.rng.randrange(top + 1)
        last = self.rng.choice((first, top, top, top + 1, self.plan.entries + 1))
        last = max(first, last)
        kind = self.rng.choice(("read", "read", "unconfirmed"))
        call = reader.read if kind == "read" else reader.read_unconfirmed
        await read_and_judge(self, reader, kind, first, last, lambda: call(first, last))

    async def _tail(self, reader: Reader) -> None:
        start = self.rng.choice((0, 0, 0, max(0, reader.last_confirmed)))
        wanted, shown = start, reader.last_confirmed
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
                shown = self._lac(reader, shown, reader.last_confirmed)
                self._judge(reader, start, entry, self._vouched(reader))
        except BuckramError as error:
            self.note(f"tail of ledger {reader.ledger_id} failed at {wanted}: {describe(error)}: {error}")
            self.tail_failed(reader.ledger_id, error)
            return
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

    def _vouched(self, reader: Reader) -> EntryId:
        """A tail follows the LAC by itself; what it may deliver is bounded by what anybody said to be confirmed."""
        facts = self.judge.facts.ledger(reader.ledger_id)
        begun = facts.metadata.last_fragment.first_entry - 1 if facts.metadata is not None else -1
        return max(facts.max_lac, begun, facts.closed[0] if facts.closed else -1)

    def _judge(self, reader: Reader, first: EntryId, entry: Entry, lac: EntryId) -> None:
        row = (entry.entry_id, entry.payload, entry.length, entry.last_add_confirmed)
        self.judge.read_done(reader.ledger_id, ReadResult(self.host, "tail", first, entry.entry_id, lac, [row]))

    def tail_failed(self, ledger_id: LedgerId, error: BuckramError) -> None:
        """Allowed while faults last; the ending judges tails that should have gone on (L6)."""


async def read_and_judge(
    actor: Actor, reader: Reader, kind: str, first: EntryId, last: EntryId, call: Callable[[], Awaitable[list[Entry]]]
) -> ReadResult:
    """Run one read and give its outcome to the judge."""
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
