"""After the last mark: calls that hang, ledgers that are still open, tails, and a full read of what is left.

L1 to L6, L10 and L11 are checked while the bookies that are lost for good are away. Not here: what healing owes by then
(`ending.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from contextlib import suppress

from buckram.cluster import Client
from buckram.errors import BuckramError
from buckram.types import EntryId, LedgerId, LedgerMetadata
from simulator.engine.checkers.facts import entries_of, write_sets
from simulator.engine.world import Died
from simulator.healing.workers import Stage

DEADLINE_S = 60.0


class Final:
    """The last part of one life."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.world, self.report = stage, stage.world, stage.world.report
        self.judge = stage.world.judge
        self.rng = random.Random(f"final {stage.healing.seed}")

    def check_calls(self) -> None:
        """Check L3, L4 and L10: long after the faults every append and every close has ended."""
        if self.stage.healing.tampered:
            return
        for handle in self.judge.facts.handles:
            handle.died = handle.died or self.world.processes[handle.client].dead
        self.judge.facts.handles = [
            handle for handle in self.judge.facts.handles if self.judge.facts.ledger(handle.ledger).metadata is not None
        ]
        self.judge.check_settled()
        for handle in self.judge.facts.handles:
            if handle.closing and not handle.died:
                hangs = handle.close_called_at is not None
                self.report.check("L10", not hangs, "{} never closes ledger {}", handle.client, handle.ledger)

    async def run(self) -> None:
        """Recover all ledgers that can be, wait for tails, and read everything."""
        clients = []
        for host in ("f1", "f2"):
            try:
                clients.append((host, await self.world.client(host)))
            except (BuckramError, Died) as error:
                self.report.check("L1", False, "no client starts: {!r}", error)
                return
        hung = self._hang_one()
        for ledger in self.stage.ledgers:
            await self._end(ledger, clients, hung)
        if hung is not None:
            self.world.resume(hung)
        await self._await_tails()
        for ledger in self.stage.ledgers:
            await self._read(ledger, *clients[0])

    def _metadata(self, ledger: LedgerId) -> LedgerMetadata | None:
        return self.judge.facts.ledger(ledger).metadata

    # -- ends

    def _hang_one(self) -> str | None:
        """Pause a living bookie in some lives (L2). Return its name, or None."""
        machines = [machine.name for machine in self.world.machines.values() if machine.running]
        if self.rng.random() >= 0.3 or not machines:
            return None
        name = self.rng.choice(machines)
        self.world.pause(name)
        return name

    def _silent(self, ledger: LedgerId, hung: str | None) -> list[int]:
        """Return the number of members that do not answer in each write set of the last fragment."""
        metadata = self._metadata(ledger)
        assert metadata is not None
        away = {*self.stage.rules.lost, hung}
        return [sum(b in away for b in members) for members in write_sets(metadata.last_fragment, metadata)]

    async def _end(self, ledger: LedgerId, clients: list[tuple[str, Client]], hung: str | None) -> None:
        """Recover an open ledger by two clients at the same time (L5)."""
        metadata = self._metadata(ledger)
        if metadata is None or metadata.closed or self.stage.healing.tampered:
            return
        silent = self._silent(ledger, hung)
        if max(silent) >= metadata.ack_quorum or len(metadata.fragments) > 1:
            return  # too few members answer, or earlier fragments may be on bookies that do not
        spare = hung is None and not self.stage.rules.domains.no_spare(metadata, metadata.last_fragment)
        if max(silent) > metadata.write_quorum - metadata.ack_quorum and not spare:
            return  # recovery cannot write entries back to Qa members
        done = await asyncio.gather(*(self._recover(host, client, ledger) for host, client in clients))
        name = "L2" if hung is not None else "L1"
        self.report.check(name, any(done), "ledger {} cannot be ended, {} is silent", ledger, hung)
        self.report.check("L5", all(done), "one of two recoveries of ledger {} failed", ledger)

    async def _recover(self, host: str, client: Client, ledger: LedgerId) -> bool:
        for _ in range(4):
            last: EntryId | None = None
            length = 0

            async def work() -> tuple[EntryId, int]:
                reader = await client.recover(ledger, password=b"")
                await reader.close()
                return reader.last_confirmed, reader.length or 0

            self.judge.recovery_started(host, ledger)
            with suppress(BuckramError, Died):
                last, length = await self._in_time(host, work())
            self.judge.recovery_ended(host, ledger, last, length)
            if last is not None:
                return True
            await asyncio.sleep(1.0)
        return False

    async def _in_time(self, host: str, work: Awaitable[tuple[EntryId, int]]) -> tuple[EntryId, int]:
        async def timed() -> tuple[EntryId, int]:
            async with asyncio.timeout(DEADLINE_S):
                return await work

        try:
            return await self.world.join(self.world.processes[host], timed(), "final recovery")
        except TimeoutError:
            raise BuckramError("a recovery that never ends") from None

    # -- tails

    async def _await_tails(self) -> None:
        """Check L6: a tail delivers the rest of its ledger, and ends since that is closed."""
        for host, ledger, task in self.stage.tails:
            metadata = self._metadata(ledger)
            if metadata is None or not metadata.closed or self.world.processes[host].dead:
                continue
            if any(not self.stage.rules.copies.count(ledger, e, members) for e, members in entries_of(metadata)):
                continue
            for _ in range(round(DEADLINE_S)):
                if task.done():
                    break
                await asyncio.sleep(1.0)
            self.report.check("L6", task.done(), "{} follows ledger {}, which is closed, and never ends", host, ledger)

    # -- content

    async def _read(self, ledger: LedgerId, host: str, client: Client) -> None:
        """Check L11: every acknowledged entry of a closed ledger with a copy left is read as it was written."""
        metadata = self._metadata(ledger)
        if metadata is None or not metadata.closed:
            return
        acked = self.stage.rules.written[ledger].acked
        end = metadata.last_entry if metadata.last_entry is not None else -1
        left = {e for e, members in entries_of(metadata) if self.stage.rules.copies.count(ledger, e, members)}
        above = [entry for entry in acked if entry > end]
        self.report.check("content", not above, "ledger {} ends at {}, acknowledged: {}", ledger, end, above)

        async def read() -> str:
            async with asyncio.timeout(DEADLINE_S):
                reader = await client.open(ledger, password=b"")
                for entry, payload in acked.items():
                    if entry in left:
                        (found,) = await reader.read(entry, entry)
                        if bytes(found.payload) != payload:
                            return f"entry {entry} is another"
                await reader.close()
                return ""

        problem = ""
        try:
            problem = await self.world.join(self.world.processes[host], read(), "final read")
        except TimeoutError:
            self.report.check("L11", False, "ledger {} is not read within {:.0f} s", ledger, DEADLINE_S)
        except (BuckramError, Died) as error:
            problem = repr(error)
        self.report.check("L11", True)
        self.report.check("content", not problem, "ledger {}: {}", ledger, problem)
