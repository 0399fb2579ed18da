"""Customers of the bank that use its database over HTTP (Hrana), and what each was told, as events of a history.

A batch is one request, a transaction of several calls holds a stream, a read asks any server. Only what was certainly
not executed is told to be aborted; of what nobody knows there is no end in the history. Readers hold replicas in this
process, for reads of an offset (`after=`). Not here: servers and faults (`http_bank.py`).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from buckram.errors import BuckramError
from buckram.runtime.net.http_client import HttpConnection
from buckram.state.db.database import Database
from chaos.actors.bank import (
    DATABASE,
    LOOK,
    QUICK,
    SCHEMA,
    SLOW,
    Operation,
    drawn,
    drawn_look,
    looks,
    statements,
)
from chaos.history import Event

NAME = f"default/{DATABASE}"
_PAUSE_S = 0.3
_KNOWN_S = 30.0
"""For so long one asks what became of a commit."""
_NOT_DONE = {
    *("NOT_LEADER", "NO_LEADER", "TRANSACTION_TIMEOUT", "TRANSACTION_TOO_LARGE", "TOO_MANY_STREAMS", "BLOCKED"),
    *("BATON_INVALID", "STREAM_EXPIRED", "STREAM_CLOSED", "ARGS_INVALID", "NO_SUCH_DATABASE", "UNREACHED"),
}
"""Codes of errors after which nothing was committed, beside those of SQLite itself."""
_SLOWLY = "(WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 300000) SELECT count(*) FROM n)"
SLOW_LOOK = LOOK.replace("(SELECT sum(balance) FROM account)", f"(SELECT sum(balance) + 0 * {_SLOWLY} FROM account)")
Sql = tuple[str, Sequence[Any]]


class Refused(Exception):
    """An error of a server, or no answer: `code` is UNREACHED if nothing was sent, NO_ANSWER if something may have."""

    def __init__(self, code: str, token: str | None = None) -> None:
        super().__init__(code)
        self.code, self.token = code, token

    @property
    def undone(self) -> bool:
        """Whether what was asked for was certainly not done."""
        return self.code in _NOT_DONE or self.code.startswith("SQLITE_")


class History:
    """What customers and readers saw, in the order of time."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.counts: Counter[str] = Counter()

    def begin(self, name: str, how: str, operations: list[Operation], **facts: Any) -> None:
        self.record("transaction", name=name, how=how, operations=operations, **facts)
        self.counts[how] += 1

    def end(self, name: str, outcome: str, operations: list[Operation], rows: Any = None) -> Event:
        seen = looks(operations, rows) if rows is not None else []
        self.counts[outcome] += 1
        return self.record("transaction-ended", name=name, outcome=outcome, looks=seen, offset=None)

    def record(self, event: str, **facts: Any) -> Event:
        one = {"event": event, "at": time.monotonic(), "actor": "http", **facts}
        self.events.append(one)
        return one


class Customer:
    """One of them, which asks whichever of the servers it likes."""

    def __init__(self, name: str, seed: int, urls: Sequence[str], history: History, longest_s: float) -> None:
        self._name, self._urls, self._history = name, urls, history
        self._rng = random.Random(f"{name} {seed}")
        self._longest_s = longest_s
        """The longest that an answer is waited for: that of a leader that was stopped for longer than its lease."""

    async def make_tables(self, stop: asyncio.Event) -> None:
        """Again and again until a server does it."""
        while not stop.is_set():
            try:
                await self._batch(SCHEMA, 30.0)
            except Refused:
                await asyncio.sleep(0.1)
            else:
                return

    async def work(self, stop: asyncio.Event) -> None:
        """One transaction after the other, until the end."""
        serial = 0
        while not stop.is_set():
            name, serial, kind = f"{self._name}.{serial}", serial + 1, self._rng.random()
            if kind < 0.35:
                await self._write(name)
            elif kind < 0.5:
                await self._call(name, drawn(self._rng, name, True))
            elif kind < 0.55:
                await self._call(name, [drawn_look(self._rng), drawn_look(self._rng)])
            elif kind < 0.95:
                await self._read(name)
            else:
                await self._ask_slowly()
            await asyncio.sleep(self._rng.random() * _PAUSE_S)

    # -- transactions ---------------------------------------------------------------------------------------

    async def _write(self, name: str) -> None:
        """A batch, or a single statement."""
        alone = self._rng.random() < 0.2
        operations: list[Operation] = [["done", name, None, None, None]] if alone else drawn(self._rng, name, False)
        self._history.begin(name, "batch", operations)
        wanted = [one for operation in operations for one in statements(operation)]
        try:
            rows = [await self._one(*wanted[0])] if alone else await self._batch(wanted, self._wait_s())
        except Refused as error:
            await self._failed(name, operations, error)
        else:
            self._history.end(name, "ok", operations, rows)

    async def _call(self, name: str, operations: list[Operation]) -> None:
        """Statement by statement, on one stream."""
        self._history.begin(name, "calls", operations)
        stream, rows = Stream(self, self._wait_s()), list[Any]()
        pause_s = self._rng.choice((0.0, 0.0, 0.05, 0.3))
        try:
            await stream.run("BEGIN IMMEDIATE" if self._rng.random() < 0.3 else "BEGIN")
            for operation in operations:
                for sql, values in statements(operation):
                    rows.append(await stream.run(sql, values))
                    await asyncio.sleep(pause_s)
        except Refused:
            self._history.end(name, "aborted", operations)  # COMMIT was never sent.
            await stream.close()
            return
        try:
            await stream.run("COMMIT")
        except Refused as error:
            await self._failed(name, operations, error)
        else:
            self._history.end(name, "ok", operations, rows)
        await stream.close()

    async def _failed(self, name: str, operations: list[Operation], error: Refused) -> None:
        self._history.counts[f"error {error.code}"] += 1
        if error.undone:
            self._history.end(name, "aborted", operations)
        elif error.code == "COMMIT_UNKNOWN" and error.token is not None:
            outcome = await self._outcome(name, error.token)
            if outcome != "pending":
                self._history.end(name, "ok" if outcome == "committed" else "aborted", operations)
        else:
            self._history.counts["unknown"] += 1

    async def _outcome(self, name: str, token: str) -> str:
        limit = time.monotonic() + _KNOWN_S
        while time.monotonic() < limit:
            try:
                ((outcome,),) = await self._one("SELECT buckram_outcome(?)", [token])
            except Refused:
                outcome = "pending"
            if outcome != "pending":
                self._history.record("outcome", name=name, outcome=outcome)
                return str(outcome)
            await asyncio.sleep(0.2)
        self._history.counts["unknown"] += 1
        return "pending"

    # -- reads ------------------------------------------------------------------------------------------------

    async def _read(self, name: str) -> None:
        rng, operations = self._rng, [drawn_look(self._rng)]
        consistency = rng.choice(("linearizable", "linearizable", "leader", "stale", "stale"))
        how, fresh = ("" if consistency == "linearizable" else f"@{consistency}"), dict[str, Any]()
        if consistency == "stale" and rng.random() < 0.7:
            fresh = {"at_most_s": rng.choice((0, 0.5, 3))}
            how = f"@stale={fresh['at_most_s']}"
        self._history.begin(name, consistency, operations, **fresh)
        ((sql, values),) = statements(operations[0])
        try:
            rows = await self._one(SLOW_LOOK if rng.random() < 0.1 else sql, values, how)
        except Refused:
            return
        self._history.end(name, "ok", operations, [rows])

    async def _ask_slowly(self) -> None:
        """Keep the reading threads of one server with slow statements and with quick ones that come with them."""
        url, how = self._rng.choice(self._urls), self._rng.choice(("", "@stale"))
        wanted = [self._one(sql, (), how, url) for sql in (SLOW, SLOW, *(QUICK,) * 8)]
        await asyncio.gather(*wanted, return_exceptions=True)
        self._history.counts["slow"] += 2

    # -- requests -----------------------------------------------------------------------------------------

    def _wait_s(self) -> float:
        return self._rng.choice((3.0, 6.0, self._longest_s))

    async def _one(self, sql: str, values: Sequence[Any], how: str = "", url: str = "") -> list[list[Any]]:
        """The rows of one statement outside of a stream."""
        url = url or self._rng.choice(self._urls)
        answer = await self.ask(f"{url}/{NAME}{how}/", "v1/execute", {"stmt": _stmt((sql, values))}, self._wait_s())
        return _rows(answer["result"])

    async def _batch(self, wanted: Sequence[Sql], within_s: float) -> list[list[list[Any]]]:
        """As libSQL's clients do: BEGIN, each one if the one before succeeded, COMMIT, or else ROLLBACK."""
        texts = [("BEGIN", ()), *wanted, ("COMMIT", ())]
        steps: list[dict[str, Any]] = [{"stmt": _stmt(one)} for one in texts]
        for at, step in enumerate(steps[1:]):
            step["condition"] = {"type": "ok", "step": at}
        last = {"type": "not", "cond": {"type": "ok", "step": len(steps) - 1}}
        steps.append({"stmt": _stmt(("ROLLBACK", ())), "condition": last})
        requests = [{"type": "batch", "batch": {"steps": steps}}, {"type": "close"}]
        url = f"{self._rng.choice(self._urls)}/{NAME}/"
        answer = await self.ask(url, "v3/pipeline", {"baton": None, "requests": requests}, within_s)
        found = answer["results"][0]
        if found["type"] != "ok":
            raise _refused(found["error"])
        result = found["response"]["result"]
        for error in result["step_errors"]:
            if error is not None:
                raise _refused(error)
        return [_rows(one) for one in result["step_results"][1:-2]]

    async def ask(self, base: str, path: str, body: dict[str, Any], within_s: float) -> Any:
        """The answer of a server. Raises Refused."""
        place = urlsplit(base)
        try:
            async with asyncio.timeout(within_s):
                connection = await HttpConnection.open(place.netloc, None)
        except (OSError, TimeoutError):
            await asyncio.sleep(0.05)
            raise Refused("UNREACHED") from None
        try:
            async with asyncio.timeout(within_s):
                status, answer = await connection.ask(place.path + path, {}, json.dumps(body).encode())
        except (OSError, TimeoutError):
            raise Refused("NO_ANSWER") from None
        finally:
            connection.close()
        value = json.loads(answer)
        if status != 200:
            raise _refused(value)
        return value


class Stream:
    """A stream of one customer. It goes where the servers say."""

    def __init__(self, customer: Customer, within_s: float) -> None:
        self._customer, self._within_s = customer, within_s
        self._base, self._baton = f"{customer._rng.choice(customer._urls)}/{NAME}/", ""

    async def run(self, sql: str, values: Sequence[Any] = ()) -> list[list[Any]]:
        """The rows of a statement. Raises Refused."""
        found = await self._send({"type": "execute", "stmt": _stmt((sql, values))})
        if found["type"] != "ok":
            raise _refused(found["error"])
        return _rows(found["response"]["result"])

    async def close(self) -> None:
        """Whatever becomes of it."""
        if self._baton:
            await asyncio.gather(self._send({"type": "close"}), return_exceptions=True)

    async def _send(self, request: dict[str, Any]) -> Any:
        body = {"baton": self._baton or None, "requests": [request]}
        answer = await self._customer.ask(self._base, "v3/pipeline", body, self._within_s)
        self._base, self._baton = answer["base_url"] or self._base, answer["baton"] or ""
        return answer["results"][0]


class Reader:
    """Two replicas in this process: one learns at which offset an acknowledged write is, the other reads there."""

    def __init__(self, seed: int, first: Database, second: Database, history: History) -> None:
        self._rng = random.Random(f"reader {seed}")
        self._first, self._second, self._history = first, second, history
        self._serial = 0

    async def work(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                async with asyncio.timeout(10):
                    await self._round()
            except (BuckramError, TimeoutError):
                self._history.counts["reader refused"] += 1
            await asyncio.sleep(self._rng.random() * _PAUSE_S)

    async def _round(self) -> None:
        acked = next((one for one in reversed(self._history.events) if _is_acked_write(one)), None)
        at_most_s = self._rng.choice((0.0, 0.0, 0.5, 3.0))
        await self._look(self._first, at_most_s=at_most_s)
        if acked is None or at_most_s:
            return
        offset = self._first.applied
        acked["offset"] = offset  # What was acknowledged before the look is below it.
        await self._look(self._second, after=offset)

    async def _look(self, database: Database, **fresh: Any) -> None:
        name, self._serial, operations = f"reader.{self._serial}", self._serial + 1, [drawn_look(self._rng)]
        ((_, values),) = statements(operations[0])
        self._history.begin(name, "stale", operations, **fresh)
        self._history.counts[f"stale, {next(iter(fresh))}"] += 1
        sql = SLOW_LOOK if self._rng.random() < 0.1 else LOOK
        slow = database.query(SLOW, consistency="stale") if self._rng.random() < 0.1 else None
        beside = [asyncio.ensure_future(slow)] if slow is not None else []
        try:
            found = await database.query(sql, values, consistency="stale", **fresh)
        finally:
            await asyncio.gather(*beside, return_exceptions=True)
        self._history.end(name, "ok", operations, [found.rows])


def _is_acked_write(event: Event) -> bool:
    return event["event"] == "transaction-ended" and event["outcome"] == "ok" and not event["name"].startswith("reader")


def _refused(error: dict[str, Any]) -> Refused:
    return Refused(error.get("code", "UNKNOWN"), error.get("token"))


def _stmt(one: Sql) -> dict[str, Any]:
    sql, values = one
    return {"sql": sql, "args": [_value(value) for value in values]}


def _value(value: Any) -> dict[str, Any]:
    if value is None:
        return {"type": "null"}
    if isinstance(value, int):
        return {"type": "integer", "value": str(value)}
    return {"type": "text", "value": value}


def _rows(result: dict[str, Any]) -> list[list[Any]]:
    return [[_plain(value) for value in row] for row in result["rows"]]


def _plain(value: dict[str, Any]) -> Any:
    return int(value["value"]) if value["type"] == "integer" else value.get("value")


__all__ = ["NAME", "Customer", "History", "Reader"]
