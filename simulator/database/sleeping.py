"""Time that a leader misses, and days that pass.

A leader sleeps for longer than its session lives, and wakes while another one leads. What it is asked on waking is
asked before it can notice: its timers, the end of its session and the questions come in whatever order the seed has. A
call that waited in its queue meanwhile belongs to a leadership that has ended: whoever asked the next leader about it
was told that it is aborted, so it must never be executed, even if the sleeper leads once more.

Days pass for all clocks at once: a token is known for a day, and the newest ones for longer than that.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from buckram.core.db.sql import SqlResult
from buckram.errors import BuckramError, CommitUnknown, SqlError
from buckram.state.db.database import Database
from simulator.database.asking import Asking
from simulator.database.interactive import KEYS, appending
from simulator.database.looking import Bounds, Looking
from simulator.database.rules import Attempt
from simulator.database.stage import Stage
from simulator.engine.checkers.serializability import Append
from simulator.engine.pace import HOUR_US
from simulator.engine.world import Died

_TROUBLE = (BuckramError, TimeoutError, Died, KeyError)
_MOST = 3
_ON_WAKING: tuple[Bounds, ...] = (
    ("linearizable", None, None),
    ("leader", None, None),
    ("stale", 0.0, None),
    ("stale", 0.3, None),
)


class Sleeper:
    """Has leaders sleep, one after the other."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.world, self.rules = stage, stage.world, stage.rules
        self._asking = Asking(stage, "sleeper")
        self._looking, self.rng = Looking(self._asking), self._asking.rng
        self._serial = 0

    async def run(self) -> None:
        for _ in range(_MOST):
            await asyncio.sleep(0.5 + self.rng.random() * 2.5)
            host = self._leader("")
            if self.stage.over:
                return
            if host:
                await self._sleep(host)

    def _leader(self, other_than: str) -> str:
        """Return a host, but this one, that believes to lead; empty if there is none."""
        for host in self.stage.living():
            if host != other_than and self.stage.open[host]._replica.leads and not self._paused(host):
                return host
        return ""

    def _paused(self, host: str) -> bool:
        return self.world.processes[host].paused

    async def _sleep(self, host: str) -> None:
        waiting = self._attempt(token=True)
        queued = asyncio.create_task(self._queue(host, waiting), name="queued")
        await asyncio.sleep(self.rng.random() * 0.1)
        if self.world.processes[host].dead or self._paused(host):
            await queued
            return
        self.world.pause(host)
        await asyncio.sleep(self.rng.random())
        self.world.sessions[host].expire()
        self.world.disturb(host, 0)
        try:
            other = await self._other_leads(host)
            said = await self._outcome(other, waiting) if other else ""
            if other:
                await self._write(other)
                self.world.report.situation("a leader slept while another one led")
        finally:
            asked: list[asyncio.Task[Any]] = [
                asyncio.create_task(self._looking.look(host, bounds), name="on waking") for bounds in _ON_WAKING
            ]
            asked.append(asyncio.create_task(self._write(host), name="on waking"))
            self.world.resume(host)
        await self._lead_again(host)
        await asyncio.gather(queued, *asked)
        if said:
            assert waiting.token is not None
            self.rules.said_meanwhile(waiting.token, said, waiting.outcome == "ok")
        if waiting.outcome == "unknown" and said in ("committed", "aborted"):
            waiting.outcome = "ok" if said == "committed" else "aborted"
            self.rules.told(waiting)

    async def _other_leads(self, host: str) -> str:
        until = self.world.loop.time() + 12.0
        while self.world.loop.time() < until and not self.stage.over:
            if other := self._leader(host):
                return other
            await asyncio.sleep(0.05)
        return ""

    async def _lead_again(self, host: str) -> None:
        if self.rng.random() < 0.5:
            try:
                await self._asking.ask_at(host, lambda database: database.lead(takeover=True), 5.0)
            except _TROUBLE as error:
                self.world.trace.note("sleeper", f"{host} does not lead again: {error!r}")

    # -- calls --------------------------------------------------------------------------------------------

    def _attempt(self, *, token: bool) -> Attempt:
        self._serial += 1
        name = f"sleeper {self._serial}"
        one = Append(f"l{self.rng.randrange(KEYS)}", name)
        attempt = Attempt(name, self.world.loop.time(), [one], token=f"token {name}" if token else None)
        self.rules.attempts.append(attempt)
        return attempt

    async def _queue(self, host: str, attempt: Attempt) -> None:
        """Let a call wait behind an open transaction, which holds the database of this replica for a while."""

        async def hold(database: Database) -> None:
            transaction = await database.begin("immediate")
            try:
                await asyncio.sleep(self.rng.random() * self.rng.choice((0.5, 4.5)))
            finally:
                await transaction.rollback()

        holding = asyncio.create_task(_quiet(self._asking.ask_at(host, hold, 20.0)), name="hold")
        await asyncio.sleep(0.02)
        await self._execute(host, attempt, 25.0)
        await holding

    async def _execute(self, host: str, attempt: Attempt, within_s: float) -> None:
        statement = appending(attempt.operations[0])  # type: ignore[arg-type]  # it is the append that `_attempt` put there

        async def execute(database: Database) -> SqlResult:
            return await database.execute(*statement, token=attempt.token)

        try:
            await self._asking.ask_at(host, execute, within_s)
        except CommitUnknown as error:
            found = await self._asking.outcome(error.token)
            attempt.outcome = {"committed": "ok", "aborted": "aborted"}.get(found, "unknown")  # type: ignore[assignment]  # one of the three
        except SqlError:
            attempt.outcome = "aborted"
        except _TROUBLE as error:
            self.world.trace.note("sleeper", f"{attempt.name} at {host}: {error!r}")
            return
        else:
            attempt.outcome = "ok"
        if attempt.outcome != "unknown":
            self.rules.told(attempt)
        if attempt.outcome == "ok":
            self.rules.acknowledged(attempt, self._asking.applied, self._asking.answered)

    async def _write(self, host: str) -> None:
        await self._execute(host, self._attempt(token=False), 4.0)

    async def _outcome(self, host: str, attempt: Attempt) -> str:
        """Ask the new leader about the call that waits at the sleeping one."""
        token = attempt.token
        assert token is not None
        try:
            return await self._asking.ask_at(host, lambda database: database.outcome(token), 4.0)
        except _TROUBLE:
            return ""


class Days:
    """Lets days pass between two moments of a life."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.world = stage, stage.world
        self.rng = random.Random(f"{stage.machines.seed} days")

    async def run(self) -> None:
        for _ in range(2):
            await asyncio.sleep(1.0 + self.rng.random() * 3.0)
            if self.stage.over:
                return
            self.world.passed.us += int(self.rng.choice((30.0, 80.0)) * HOUR_US)
            self.world.report.situation("days passed")
            self.world.trace.note("days", "days pass")


async def _quiet(asked: object) -> None:
    try:
        await asked  # type: ignore[misc]  # an awaitable
    except _TROUBLE:
        return


__all__ = ["Days", "Sleeper"]
