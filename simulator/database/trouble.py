"""Watches for leaders in trouble, which clients meet too seldom, and asks them.

Where two replicas believe to lead, the newer one writes, and the deposed one reads. A leader that hears no answers of
bookies writes a record that may reach the log all the same; then the next leader is asked for its outcome.
"""

from __future__ import annotations

import asyncio

from buckram.core.db.sql import SqlResult
from buckram.errors import BuckramError, CommitUnknown, SqlError
from buckram.state.db.database import Database
from simulator.database.asking import Asking
from simulator.database.interactive import appending
from simulator.database.reading import READ, Reading
from simulator.database.rules import Attempt
from simulator.database.stage import Stage
from simulator.engine.checkers.serializability import Append
from simulator.engine.world import Died

_LOOKS_S = 0.02
_MOST = 12


class Troubled:
    """Writes to the newer of two leaders, then reads from the others, which must not answer without that write."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.world = stage, stage.world
        self._asking = Asking(stage, "leaders in trouble")
        self._reading = Reading(self._asking)
        self._times = 0
        self._deaf: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        while not self.stage.over and self._times < _MOST:
            await asyncio.sleep(_LOOKS_S)
            hosts = self._leaders()
            for host in hosts:
                if self._hears_nothing(host) and (host not in self._deaf or self._deaf[host].done()):
                    self._times += 1
                    self._deaf[host] = asyncio.create_task(self._write_unheard(host, self._times), name="unheard")
            if len(hosts) > 1:
                self._times += 1
                self.world.report.situation("two replicas believed to lead")
                await self._ask(hosts[-1], hosts[:-1])
        if self._deaf:
            await asyncio.wait(self._deaf.values())

    def _hears_nothing(self, host: str) -> bool:
        machines = self.world.machines.values()
        return all(self.world.fabric.blocked(machine.host, host) for machine in machines)

    async def _write_unheard(self, host: str, number: int) -> None:
        """Write through a leader that hears no answers, so that its record is stored unacknowledged."""
        one = Append("l1", f"unheard {number}")
        attempt = Attempt(str(one.value), self.world.loop.time(), [one])
        self._asking.rules.attempts.append(attempt)
        try:
            await self._asking.ask_at(host, lambda database: database.execute(*appending(one)), 20.0)
            attempt.outcome = "ok"
        except CommitUnknown as error:
            self.world.report.situation("a commit was unknown")
            outcome = await self._asking.outcome(error.token)
            if outcome == "committed":
                self.world.report.situation("an unknown commit was committed")
            attempt.outcome = {"committed": "ok", "aborted": "aborted"}.get(outcome, "unknown")  # type: ignore[assignment]  # one of the three
        except (BuckramError, TimeoutError, Died, KeyError):
            return
        attempt.ended = self.world.loop.time() if attempt.outcome != "unknown" else None

    def _leaders(self) -> list[str]:
        """Return the hosts that believe to lead, lowest epoch first."""
        found: list[tuple[int, str]] = []
        for host in self.stage.living():
            leader = self.stage.open[host]._replica._leader
            if leader is not None and not leader.ended.done():
                found.append((leader.engine.epoch, host))
        return [host for _, host in sorted(found)]

    async def _ask(self, newest: str, others: list[str]) -> None:
        name = f"between leaders {self._times}"
        one = Append("l0", name)
        attempt = Attempt(name, self.world.loop.time(), [one])
        self._asking.rules.attempts.append(attempt)

        async def write(database: Database) -> SqlResult:
            return await database.execute(*appending(one))

        async def read(database: Database) -> SqlResult:
            return await database.execute(READ)

        try:
            await self._asking.ask_at(newest, write, 2.0)
            attempt.outcome, attempt.ended = "ok", self.world.loop.time()
        except (BuckramError, TimeoutError, Died, KeyError) as error:
            attempt.outcome = "aborted" if isinstance(error, SqlError) else "unknown"
        for host in others:
            reads = Attempt(f"{name} reads at {host}", self.world.loop.time())
            try:
                self._reading.note(reads, await self._asking.ask_at(host, read, 0.5))
            except (BuckramError, TimeoutError, Died, KeyError):
                continue


__all__ = ["Troubled"]
