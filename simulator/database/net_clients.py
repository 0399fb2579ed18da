"""Clients of servers over a network that loses answers: tokens repeated at other servers, calls that are made once.

A call under a token is repeated, at whatever server, until there is an answer, and must be committed once. A call
without one is made once: whatever becomes of its answer, nobody may execute it again. Reads say by their path and a
header how old they may be. Not here: the network (`serving.py`).
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, NamedTuple

from buckram.serve.hrana.forwarding import Sent
from simulator.database.histories import Asked, Handle, values_of
from simulator.database.interactive import KEYS, appending
from simulator.database.looking import Bounds
from simulator.database.reading import READ
from simulator.database.rules import DATABASE, Attempt
from simulator.database.serving import PATH, Lost, Servers, Unreachable
from simulator.database.stage import Stage
from simulator.engine.checkers.serializability import Append, Read

_WITHIN_S = 5.0
_TRIES = 60


class _Answer(NamedTuple):
    """What a server said: results, or the code of an error; and the position."""

    results: list[Any]
    error: str
    position: int


class NetClient:
    """One client, which has a token for most of its calls."""

    def __init__(self, stage: Stage, servers: Servers, name: str) -> None:
        self.stage, self.world, self.rules, self.name = stage, stage.world, stage.rules, name
        self.servers = servers
        self.rng = random.Random(f"{stage.machines.seed} {name}")
        self.position = self._serial = 0
        self._used: list[tuple[str, list[Any], list[int]]] = []

    async def run(self) -> None:
        while not self.stage.over:
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.05, 0.4)))
            kind = self.rng.random()
            if kind < 0.35:
                await self._append_under_token()
            elif kind < 0.5:
                await self._append_once()
            elif kind < 0.6 and self._used:
                await self._repeat()
            else:
                await self._look()

    # -- the wire -----------------------------------------------------------------------------------------

    async def _ask(
        self, statements: list[Any], token: str = "", bounds: Bounds = ("linearizable", None, None)
    ) -> _Answer:
        """Send a transaction of these statements to some server. Raises Unreachable, Lost, TimeoutError."""
        hosts = self.servers.hosts()
        if not hosts:
            raise Unreachable("no server runs")
        level, at_most_s, after = bounds
        how = {"linearizable": "", "leader": "@leader", "stale": "@stale"}[level]
        bound = "" if at_most_s is None else f"={at_most_s:g}"
        headers = {"buckram-token": token} if token else {}
        if after is not None:
            headers["buckram-after"] = str(after)
        body = json.dumps({"baton": None, "requests": [_request(statements), {"type": "close"}]}).encode()
        path, host = f"/{DATABASE}{how}{bound}/{PATH}", self.rng.choice(hosts)
        async with asyncio.timeout(_WITHIN_S):
            sent = await self.servers.exchange(self.name, host, path, headers, body)
        answer = _read(sent)
        self.position = max(self.position, answer.position)
        if answer.error:
            self.world.trace.note(self.name, f"{host} says {answer.error[:60]}")
        return answer

    # -- calls --------------------------------------------------------------------------------------------

    def _attempt(self, *, token: bool) -> tuple[Attempt, list[Any]]:
        self._serial += 1
        name = f"{self.name} {self._serial}"
        attempt = Attempt(name, self.world.loop.time(), token=f"token {name}" if token else None)
        for n in range(self.rng.choice((1, 1, 2))):
            attempt.operations.append(Append(f"l{self.rng.randrange(KEYS)}", f"{name}.{n}"))
        self.rules.attempts.append(attempt)
        return attempt, [appending(one) for one in attempt.operations if isinstance(one, Append)]

    async def _append_under_token(self) -> None:
        attempt, statements = self._attempt(token=True)
        token = attempt.token or ""
        for tried in range(_TRIES):
            try:
                answer = await self._ask(statements, token)
            except (Lost, Unreachable, TimeoutError):
                await asyncio.sleep(self.rng.random() * 0.3)
                continue
            if not answer.error:
                if tried:
                    self.world.report.situation("a token was repeated at another server")
                self._committed(attempt, answer)
                self._used.append((token, statements, _counts(answer.results)))
                return
            await asyncio.sleep(self.rng.random() * 0.3)

    async def _append_once(self) -> None:
        """Make a call without a token. Whatever the answer is, it is not made again; nor may a server do so."""
        attempt, statements = self._attempt(token=False)
        try:
            answer = await self._ask(statements[:1])
        except (Lost, Unreachable, TimeoutError):
            answer = None
        del attempt.operations[1:]
        if answer is not None and not answer.error:
            self._committed(attempt, answer)

    def _committed(self, attempt: Attempt, answer: _Answer) -> None:
        attempt.outcome = "ok"
        self.rules.told(attempt, _counts(answer.results) if attempt.token else None)
        self.rules.acknowledged(attempt, answer.position, "")
        self.world.report.situation("a call was made over the network")

    async def _repeat(self) -> None:
        """Repeat a call under its used token at any server: it is told the counts of the first time."""
        token, statements, counts = self.rng.choice(self._used)
        try:
            answer = await self._ask(statements, token)
        except (Lost, Unreachable, TimeoutError):
            return
        if not answer.error:
            self.rules.repeated(token, counts, _counts(answer.results))

    # -- reads --------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        kind, rng = self.rng.random(), self.rng
        bounds: Bounds = ("linearizable", None, None)
        if kind < 0.3:
            bounds = ("stale", rng.choice((0.0, 0.05, 0.3, 1.0)), None)
        elif kind < 0.6 and self.position:
            bounds = ("stale", None, self.position)
        elif kind < 0.75:
            bounds = ("leader", None, None)
        self._serial += 1
        name = f"{self.name} look {self._serial}"
        level, at_most_s, after = bounds
        asked = Asked(name, Handle(name, 0.0), level, self.world.loop.time(), at_most_s, after)
        try:
            answer = await self._ask([(READ, ())], bounds=bounds)
        except (Lost, Unreachable, TimeoutError):
            return
        if answer.error or not answer.results:
            return
        rows = [[value.get("value") for value in row] for row in answer.results[0]["rows"]]
        reads = [Read(key, tuple(row[1] for row in rows if row[0] == key)) for key in (f"l{n}" for n in range(KEYS))]
        now = self.world.loop.time()
        self.rules.histories.looks.append(asked.answered(now, values_of(reads), answer.position))
        timed = level == "linearizable"
        self.rules.attempts.append(
            Attempt(name, asked.began if timed else -1.0, [*reads], now if timed else None, "ok")
        )
        self.world.report.situation("a read was answered over the network")


def _request(statements: list[Any]) -> dict[str, Any]:
    """Return statements as a request: one alone, or a transaction as libSQL's clients write it."""
    stmts = [
        {"sql": sql, "args": [{"type": "text", "value": value} for value in values], "want_rows": True}
        for sql, values in statements
    ]
    if len(stmts) == 1:
        return {"type": "execute", "stmt": stmts[0]}
    steps: list[dict[str, Any]] = [{"stmt": {"sql": "BEGIN"}}]
    for stmt in [*stmts, {"sql": "COMMIT"}]:
        steps.append({"stmt": stmt, "condition": {"type": "ok", "step": len(steps) - 1}})
    last = {"type": "not", "cond": {"type": "ok", "step": len(steps) - 1}}
    steps.append({"stmt": {"sql": "ROLLBACK"}, "condition": last})
    return {"type": "batch", "batch": {"steps": steps}}


def _read(sent: Sent) -> _Answer:
    """Return the results of the statements, or the error of the first one that failed."""
    position = int(sent.headers.get("buckram-offset", "0"))
    if sent.status != 200:
        return _Answer([], sent.body.decode(), position)
    first = json.loads(sent.body)["results"][0]
    if first["type"] == "error":
        return _Answer([], str(first["error"]), position)
    response = first["response"]
    if response["type"] == "execute":
        return _Answer([response["result"]], "", position)
    result = response["result"]
    if errors := [error for error in result["step_errors"] if error is not None]:
        return _Answer([], str(errors[0]), position)
    return _Answer(result["step_results"][1:-2], "", position)


def _counts(results: list[Any]) -> list[int]:
    return [int(one["affected_row_count"]) for one in results]


__all__ = ["NetClient"]
