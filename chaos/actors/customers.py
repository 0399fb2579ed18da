"""Actors that use the bank: they send transactions to replicas over the network, and retry until they know the outcome.

A batch is repeated under its token until its outcome is known, if need be by a later process of this name. A
transaction of several calls is executed once; if its commit is unknown, its outcome is queried, and without an answer
it stays unknown.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from chaos.actors.bank import (
    QUICK,
    SCHEMA,
    SLOW,
    Answer,
    Operation,
    ask,
    drawn,
    drawn_look,
    looks,
    statements,
)
from chaos.actors.stage import Stage
from chaos.history import read_own

_WORKERS = 3
_PAUSE_S = 0.4
"""The longest pause of one worker, so that two cores have time for the rest."""
_KNOWN_S = 60.0
"""Maximum seconds spent on finding out the outcome of a transaction."""
_ROLLED_BACK = {"SqlError", "DatabaseBusy", "NotLeader", "TransactionExpired", "TransactionTooLarge"}


async def use_bank(stage: Stage) -> None:
    """Make the tables, end what an earlier process of this name began, and then work until the end."""
    customer = Customer(stage)
    while not stage.stop.is_set():
        answer = await customer.ask_leader({"do": "batch", "statements": SCHEMA, "token": "schema"})
        if "error" not in answer:
            break
    left = customer.take_up()
    await asyncio.gather(*(customer.repeat(**one) for one in left), *(customer.work() for _ in range(_WORKERS)))


class Customer:
    """One process of them."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._rng, self._record = stage, stage.rng, stage.recorder.record
        self._serial = 0
        self._leader = ""
        """Replica that led at the last request."""
        self._offset = 0
        """Offset below which all commits of this process lie."""

    def take_up(self) -> list[dict[str, Any]]:
        """Return the batches of an earlier process of this name whose outcomes are unknown."""
        left: dict[str, dict[str, Any]] = {}
        for event in read_own(self._stage.history):
            if event["event"] == "transaction":
                self._serial = int(event["name"].rpartition(".")[2]) + 1
                if event["how"] == "batch":
                    left[event["name"]] = {"name": event["name"], "operations": event["operations"]}
            elif event["event"] == "transaction-ended":
                left.pop(event["name"], None)
        return list(left.values())

    async def work(self) -> None:
        """Execute one transaction after the other."""
        while not self._stage.stop.is_set():
            name = f"{self._stage.name}.{self._serial}"
            self._serial += 1
            kind = self._rng.random()
            if kind < 0.45:
                operations = drawn(self._rng, name, self._rng.random() < 0.3)
                self._begin(name, "batch", operations)
                await self.repeat(name, operations)
            elif kind < 0.6:
                await self._transact(name, drawn(self._rng, name, True))
            elif kind < 0.96:
                await self._read(name)
            elif kind < 0.995:
                await self._ask_slowly()
            else:
                await ask(self._rng.choice(self._stage.replicas), {"do": "lead"}, 5.0)
            await self._stage.pause(self._rng.random() * _PAUSE_S)

    # -- what is done -------------------------------------------------------------------------------------

    def _begin(self, name: str, how: str, operations: list[Operation], **facts: Any) -> None:
        self._record("transaction", name=name, how=how, operations=operations, **facts)

    def _end(self, name: str, outcome: str, operations: list[Operation], answer: Answer | None = None) -> None:
        seen = [] if answer is None else looks(operations, answer["results"])
        offset = None if answer is None else answer["applied"]
        self._record("transaction-ended", name=name, outcome=outcome, looks=seen, offset=offset)

    async def repeat(self, name: str, operations: list[Operation]) -> None:
        """Repeat a batch under its token until its outcome is known, or this process ends."""
        request = {"do": "batch", "token": name, "statements": [one for op in operations for one in statements(op)]}
        limit = time.monotonic() + _KNOWN_S
        while not self._stage.stop.is_set() and time.monotonic() < limit:
            answer = await self.ask_leader(request)
            error = answer.get("error")
            if error is None:
                self._end(name, "ok", operations, answer)
                return
            if error == "SqlError":
                self._end(name, "aborted", operations)
                return
            aborted = error == "CommitUnknown" and await self._outcome(name, answer["token"]) == "aborted"
            if aborted and self._rng.random() < 0.3:
                self._end(name, "aborted", operations)
                return

    async def _transact(self, name: str, operations: list[Operation]) -> None:
        """Statement by statement, once."""
        rng = self._rng
        self._begin(name, "calls", operations)
        mode, pause_s = rng.choice(("deferred", "immediate")), rng.choice((0.0, 0.0, 0.05, 0.3))
        wanted = [one for op in operations for one in statements(op)]
        answer = await self.ask_leader(
            {"do": "transaction", "token": name, "mode": mode, "pause_s": pause_s, "statements": wanted}
        )
        error = answer.get("error")
        if error is None:
            self._end(name, "ok", operations, answer)
        elif error in _ROLLED_BACK:
            self._end(name, "aborted", operations)
        elif error == "CommitUnknown":
            outcome = await self._outcome(name, answer["token"])
            if outcome != "pending":
                self._end(name, "ok" if outcome == "committed" else "aborted", operations)

    async def _outcome(self, name: str, token: str) -> str:
        """Return the outcome of a transaction; "pending" if no replica could tell."""
        limit = time.monotonic() + _KNOWN_S
        while not self._stage.stop.is_set() and time.monotonic() < limit:
            answer = await self.ask_leader({"do": "outcome", "token": token})
            outcome = "pending" if "error" in answer else str(answer["results"][0][0][0])
            if outcome != "pending":
                self._record("outcome", name=name, outcome=outcome)
                return outcome
            await self._stage.pause(0.1)
        return "pending"

    async def _read(self, name: str) -> None:
        rng, look = self._rng, drawn_look(self._rng)
        consistency = rng.choice(("linearizable", "linearizable", "leader", "stale", "stale"))
        fresh: dict[str, Any] = {}
        if consistency == "stale" and rng.random() < 0.7:
            fresh = {"after": self._offset} if rng.random() < 0.4 else {"at_most_s": rng.choice((0.0, 0.5, 3.0))}
        self._begin(name, consistency, [look], **fresh)
        request = {"do": "query", "statements": statements(look), "consistency": consistency, **fresh}
        if consistency == "stale":
            answer = await ask(rng.choice(self._stage.replicas), request, 5.0)
        else:
            answer = await self.ask_leader(request)
        if "error" not in answer:
            self._end(name, "ok", [look], answer)

    async def _ask_slowly(self) -> None:
        """Keep the reading threads of one replica with slow statements and with quick ones that come with them.

        The reads of others come meanwhile, and must not be answered from the state that those began with.
        """
        address = self._leader or self._rng.choice(self._stage.replicas)
        wanted: list[tuple[str, list[Any]]] = [(SLOW, [])] * 2 + [(QUICK, [])] * 8
        requests = [{"do": "query", "statements": [one], "consistency": "stale"} for one in wanted]
        await asyncio.gather(*(ask(address, request, 5.0) for request in requests))

    # -- asking -------------------------------------------------------------------------------------------

    async def ask_leader(self, request: dict[str, Any]) -> Answer:
        """Send a request to the replica that led last, or another one; after an error the next request goes to another
        one."""
        address = self._leader or self._rng.choice(self._stage.replicas)
        answer = await ask(address, request, self._rng.choice((2.0, 6.0, 6.0)))
        error = answer.get("error")
        if error is None or error == "SqlError":
            self._leader = address
            self._offset = max(self._offset, answer.get("applied", 0))
        else:
            self._leader = ""
            await self._stage.pause(0.05 + self._rng.random() * 0.3)
        return answer
