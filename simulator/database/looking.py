"""Look-ups of every consistency at every replica, and slow statements beside them.

A slow statement calls the SQL function `dawdle(seconds)`, which lives have (`watching.py`): it lasts in virtual time,
in its thread. Not here: what each consistency promises (`simulator/engine/checkers/promises.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from buckram.core.db.sql import SqlResult
from buckram.errors import BuckramError, DatabaseBusy, SqlError
from buckram.state.db.database import Database
from simulator.database.asking import Asking
from simulator.database.clients import ClientActor
from simulator.database.histories import Asked, values_of
from simulator.database.interactive import KEYS, lists_of
from simulator.database.reading import READ
from simulator.database.rules import Attempt
from simulator.database.stage import Stage
from simulator.engine.checkers.promises import Level
from simulator.engine.world import Died

SLOW = "SELECT key, value, CASE WHEN id % 8 = 1 THEN dawdle(?) END FROM lists ORDER BY id"
_STALE_S = (0.0, 0.05, 0.3, 1.0)
_SLOW_S, _QUICK_S = 3.0, 1.5
"""How long a slow statement lasts, and within which time a look-up beside it is answered."""
Bounds = tuple[Level, float | None, int | None]
"""Level, `at_most_s` and `after` of a read."""
_NOW: Bounds = ("stale", 0.0, None)


class Looking:
    """Look-ups of one asker, which go into the history."""

    def __init__(self, asking: Asking) -> None:
        self._asking, self._world, self._rules, self.rng = asking, asking.world, asking.rules, asking.rng
        self.position = 0
        """The highest position that an answer named."""
        self._serial = 0

    def bounds(self) -> Bounds:
        """Draw a level and its bounds."""
        kind = self.rng.random()
        if kind < 0.2:
            return "linearizable", None, None
        if kind < 0.4:
            return "leader", None, None
        if kind < 0.65:
            return "stale", self.rng.choice(_STALE_S), None
        if kind < 0.9 and self.position:
            return "stale", None, self.position
        return "stale", None, None

    async def look(self, host: str, bounds: Bounds, within_s: float = 6.0, slow_s: float = 0.0) -> bool:
        """Look at all lists, and note what was found. Return whether there was an answer."""
        sql, values = (SLOW, (slow_s,)) if slow_s else (READ, ())
        found = await self.ask(host, bounds, sql, values, within_s)
        if found is None:
            return False
        asked, rows, position = found
        reads = lists_of(SqlResult(rows=[row[:2] for row in rows]), KEYS)
        now, rules = self._world.loop.time(), self._rules
        rules.histories.looks.append(asked.answered(now, values_of(reads), position))
        timed = asked.level == "linearizable"
        rules.attempts.append(
            Attempt(asked.name, asked.began if timed else -1.0, [*reads], now if timed else None, "ok")
        )
        rules.report.situation(f"a {_called(bounds)} was answered")
        return True

    async def ask(
        self, host: str, bounds: Bounds, sql: str, values: tuple[Any, ...], within_s: float
    ) -> tuple[Asked, list[Any], int] | None:
        """Ask a replica. Return what was asked, the rows, and the position after them; None without an answer."""
        level, at_most_s, after = bounds
        histories = self._rules.histories
        handle = histories.handles.get(host)
        led_before = self._leads(host)
        if handle is None or host not in self._asking.stage.open:
            return None
        self._serial += 1
        name = f"{self._asking.name} look {self._serial}"
        asked = Asked(name, handle, level, self._world.loop.time(), at_most_s, after)

        async def question(database: Database) -> tuple[list[Any], int]:
            asked.leads_from = histories.leads_from(database._replica._leader)
            try:
                result = await database.query(sql, values, consistency=level, at_most_s=at_most_s, after=after)
            except SqlError as error:
                if isinstance(error, DatabaseBusy) or "no such table" not in str(error):
                    raise
                return [], database.applied  # The state is one without any table: it has nothing.
            return result.rows, database.applied

        try:
            rows, position = await self._asking.ask_at(host, question, within_s)
        except (BuckramError, TimeoutError, Died) as error:
            self._world.trace.note(self._asking.name, f"{name}: {error!r}")
            return None
        self.position = max(self.position, position)
        if level == "leader":
            leads = led_before or self._leads(host) or histories.led_since(host, asked.began)
            self._rules.report.check("looks", leads, "{}: {} answers as leader and does not lead", name, handle.name)
        return asked, rows, position

    def _leads(self, host: str) -> bool:
        database = self._asking.stage.open.get(host)
        return database is not None and database._replica.leads


def _called(bounds: Bounds) -> str:
    level, at_most_s, after = bounds
    if level != "stale":
        return f"{level} look"
    if at_most_s is not None:
        return "look of at most so many seconds"
    return "look after a position" if after else "look at any state"


class LookActor:
    """Looks at all replicas in turn, at every level, and has slow statements beside look-ups."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage, self.world = stage, stage.world
        self.looking = Looking(Asking(stage, name))
        self._writer = ClientActor(stage, f"{name} writes")
        self.rng = self.looking.rng

    async def run(self) -> None:
        while not self.stage.over:
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.02, 0.2, 0.6)))
            hosts = self.stage.living()
            if not hosts:
                continue
            host = self.rng.choice(hosts)
            kind = self.rng.random()
            if kind < 0.12:
                await self._beside_a_slow_one(host)
            elif kind < 0.3:
                await self._chase()
            elif kind < 0.4:
                await self._crowd(host)
            else:
                await asyncio.gather(*(self._look(host) for _ in range(self.rng.choice((1, 1, 2, 8)))))

    async def _chase(self) -> None:
        """Look everywhere before and right after a write, with bounds that it must be within."""
        before = [asyncio.create_task(self.looking.look(host, _NOW), name="look") for host in self.stage.living()]
        await self._writer.unit()
        for _ in range(self.rng.choice((1, 3))):
            bounds: list[Bounds] = [_NOW, ("stale", None, max(self._writer.asking.applied, self.looking.position))]
            await asyncio.gather(*(self.looking.look(host, one) for host in self.stage.living() for one in bounds))
            await asyncio.sleep(self.rng.random() * 0.01)
        await asyncio.gather(*before)

    async def _crowd(self, host: str) -> None:
        """Ask much at once of one replica, some of it slow, and go on asking for what is written meanwhile."""
        crowd = [self._look_anyhow(host, 0.02 if n < 3 else 0.0) for n in range(10)]
        asked = [asyncio.create_task(one, name="crowd") for one in crowd]
        await asyncio.gather(self._write_on(), *(self._look_on(host) for _ in range(2)), *asked)

    async def _write_on(self) -> None:
        for _ in range(6):
            await self._writer.unit()

    async def _look_on(self, host: str) -> None:
        for _ in range(8):
            await self.looking.look(host, _NOW)

    async def _look_anyhow(self, host: str, slow_s: float) -> None:
        await self.looking.look(host, ("stale", None, None), slow_s=slow_s)

    async def _look(self, host: str) -> None:
        slow_s = self.rng.choice((0.0, 0.0, 0.0, 0.002, 0.05))
        await self.looking.look(host, self.looking.bounds(), slow_s=slow_s)

    async def _beside_a_slow_one(self, host: str) -> None:
        """Look several times while one slow statement runs; each look must be answered before that one has ended."""
        if host in self.stage.slow:
            return
        self.stage.slow.add(host)
        try:
            slow = asyncio.create_task(self._dawdle(host), name="slow statement")
            await asyncio.sleep(0.1)
            for _ in range(self.rng.choice((1, 3))):
                began = self.world.loop.time()
                if await self.looking.look(host, ("stale", None, None)) and not slow.done():
                    self._check_quick(host, began)
                await asyncio.sleep(self.rng.random() * 0.2)
            await slow
        finally:
            self.stage.slow.discard(host)

    async def _dawdle(self, host: str) -> None:
        await self.looking.ask(host, ("stale", None, None), "SELECT dawdle(?)", (_SLOW_S,), 2 * _SLOW_S)

    def _check_quick(self, host: str, began: float) -> None:
        if not self.world.steady(host, began - 1.0):
            return
        took = self.world.loop.time() - began
        self.world.report.situation("a look was answered beside a slow statement")
        self.world.report.check("beside", took < _QUICK_S, "{} answers a look-up after {} s", host, took)


__all__ = ["Bounds", "LookActor", "Looking"]
