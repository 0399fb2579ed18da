"""OpenTransaction: a transaction of one caller, which has the database until it ends or its time is over.

Not here: whose turn it is (`db/writer.py`).
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Literal

from buckram.core.db.group import Receipt
from buckram.core.db.outcomes import check_token
from buckram.core.db.sql import Parameters, SqlResult, encode_counts
from buckram.db.committing import Committing
from buckram.db.engine import Engine
from buckram.db.statements import statement
from buckram.db.writer import Writer
from buckram.errors import BuckramError, CommitUnknown, HandleClosed, SqlError, TransactionExpired

Mode = Literal["deferred", "immediate", "exclusive"]
"""How a transaction begins; all have the database from the first moment on."""


class OpenTransaction:
    """From `db.begin()`. `commit` or `rollback` ends it; after its time it is rolled back: TransactionExpired."""

    def __init__(self, engine: Engine, committing: Committing, ended: asyncio.Future[None]) -> None:
        self._engine, self._committing, self._ended = engine, committing, ended
        self._loop = asyncio.get_running_loop()
        self._limit_s = engine.limits.transaction_s
        self._deadline = time.monotonic() + self._limit_s
        self._timer = self._loop.call_later(self._limit_s, self._expire)
        self._expired = False
        self._results: list[SqlResult] = []
        self._turn = asyncio.Lock()

    @property
    def open(self) -> bool:
        """Whether it takes statements."""
        return not self._ended.done() and not self._expired

    def _expire(self) -> None:
        self._expired = True
        if not self._ended.done():
            future = self._engine.run(self._engine.execution.roll_back)
            future.add_done_callback(self._rolled_back)

    def _rolled_back(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled():
            done.exception()  # The engine failed: it tells everybody.
        self._end()

    def _end(self) -> None:
        self._timer.cancel()
        if not self._ended.done():
            self._ended.set_result(None)

    def _check(self) -> None:
        if self._expired:
            raise TransactionExpired(self._engine.database, self._limit_s)
        if self._ended.done():
            raise HandleClosed(f"database {self._engine.database}: the transaction has ended; begin another one")

    async def execute(self, sql: str, parameters: Parameters = ()) -> SqlResult:
        """Execute one statement. After an SqlError the transaction goes on without it.

        Raises TransactionExpired, TransactionTooLarge, NotLeader: then it was rolled back.
        """
        one = statement(sql, parameters)
        async with self._turn:
            self._check()
            try:
                result = await asyncio.shield(
                    self._engine.run(lambda: self._engine.execution.statement(one, self._deadline))
                )
            except BuckramError as error:
                if not self._engine.execution.open:
                    self._end()
                raise self._failed(error) from None
            self._results.append(result)
            return result

    def _failed(self, error: BuckramError) -> BuckramError:
        if self._expired and not isinstance(error, TransactionExpired):
            return TransactionExpired(self._engine.database, self._limit_s)
        return error

    async def commit(self, *, token: str | None = None) -> None:
        """Commit. After an SqlError (a deferred constraint) the transaction goes on.

        Raises NotLeader and TransactionExpired (rolled back), CommitUnknown. `token`: what `outcome` knows it by.
        """
        receipt = None if token is None else Receipt(check_token(token), encode_counts(self._results))
        async with self._turn:
            self._check()
            self._timer.cancel()
            try:
                await asyncio.shield(self._engine.run(lambda: self._engine.execution.commit(receipt)))
            except SqlError:
                self._timer = self._loop.call_later(max(self._deadline - time.monotonic(), 0.0), self._expire)
                raise
            except CommitUnknown as error:
                self._end()
                raise (error if token is None else CommitUnknown(error.database, token, error.reason)) from None
            except BaseException:
                self._end()
                raise
            self._end()

    async def rollback(self) -> None:
        """Roll back. No-op after the end."""
        async with self._turn:
            if self._expired or self._ended.done():
                return
            self._timer.cancel()
            with suppress(BuckramError):
                await asyncio.shield(self._engine.run(self._engine.execution.roll_back))
            self._end()


async def begin_transaction(engine: Engine, committing: Committing, writer: Writer) -> OpenTransaction:
    """Wait for a turn and begin. What it reads is linearizable: nobody else led after it was asked for."""
    ended = await writer.turn()
    try:
        leadership = await committing.leadership()
        await committing.prove()
        await engine.run(lambda: engine.execution.begin(leadership))
        return OpenTransaction(engine, committing, ended)
    except BaseException:
        if not ended.done():
            ended.set_result(None)
        raise


__all__ = ["Mode", "OpenTransaction", "begin_transaction"]
