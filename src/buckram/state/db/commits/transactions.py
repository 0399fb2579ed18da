"""OpenTransaction: a transaction of one caller, which holds the database from its first write until its end.

A deferred one that only reads holds up no other: it reads the state of its first read, and must begin again if it wants
to write after that state is no longer the newest. Not here: whose turn it is (`state/db/commits/write_queue.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal, TypeVar

from buckram.core.db.group import Receipt
from buckram.core.db.outcomes import check_token
from buckram.core.db.sql import (
    Parameters,
    SqlResult,
    Statement,
    counts_of,
    decode_counts,
    encode_counts,
    pragma_only_reads,
)
from buckram.errors import BuckramError, CommitUnknown, DatabaseBusy, HandleClosed, SqlError, TransactionExpired
from buckram.errors.state import limit_named
from buckram.state.db.commits.committing import Committing
from buckram.state.db.commits.write_queue import WriteQueue
from buckram.state.db.settings import DatabaseLimits
from buckram.state.db.table_engine.engine import Engine
from buckram.state.db.table_engine.readers import Reading
from buckram.state.db.table_engine.statements import after_comments, first_word, probably_reads, statement

T = TypeVar("T")
Mode = Literal["deferred", "immediate", "exclusive"]
"""Time at which a transaction takes its turn to write: "deferred" with its first write, the others at the beginning."""
_READONLY, _BUSY_SNAPSHOT = 8, 517
_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""Threads of one database for the statements of transactions that only read. Each of these may run for `query_s`, so
they take none of the threads that the process has for everybody."""


def only_reads(sql: str) -> bool:
    """Return whether a statement most probably only reads; SQLite refuses it on a reader otherwise."""
    if first_word(sql) == "PRAGMA":
        return pragma_only_reads(after_comments(sql))
    return probably_reads(sql)


class Transactions:
    """Counts of the open transactions of one database in this process, and of those that read their own state; and the
    threads of the latter."""

    def __init__(self, database: str, limits: DatabaseLimits) -> None:
        self._database, self._limits = database, limits
        self.open = self.reading = 0
        self._threads, self._closed = ThreadPoolExecutor(_THREADS, "buckram-transaction"), False

    def begins(self) -> None:
        """Count one more open transaction. Raises DatabaseBusy at the limit."""
        if self.open >= self._limits.open_transactions:
            raise self._full(f"{self.open} transactions are open", "open_transactions")
        self.open += 1

    def ends(self) -> None:
        self.open -= 1

    def begins_to_read(self) -> None:
        """Count one more transaction that reads its own state. Raises DatabaseBusy at the limit."""
        if self.reading >= self._limits.reading_transactions:
            raise self._full(f"{self.reading} transactions that have not written are open", "reading_transactions")
        self.reading += 1

    def read(self, reading: Reading, one: Statement) -> asyncio.Future[SqlResult]:
        """Execute a statement in the state of a transaction that only reads, in one of the database's threads.

        Raises HandleClosed.
        """
        if self._closed:
            raise HandleClosed(f"database {self._database} is closed: its transactions have ended")
        return asyncio.get_running_loop().run_in_executor(self._threads, reading.execute_pinned, one)

    def close(self) -> None:
        """End the threads after what they execute. Idempotent."""
        self._closed = True
        self._threads.shutdown(wait=False)

    def _full(self, why: str, limit: str) -> DatabaseBusy:
        return DatabaseBusy(self._database, f"{why}; end some, or try again ({limit_named(limit)})")


class OpenTransaction:
    """A transaction from `db.begin()`, ended by `commit` or `rollback`.

    After its maximum time it is rolled back, and its calls raise TransactionExpired.
    """

    def __init__(
        self,
        engine: Engine,
        committing: Committing,
        writer: WriteQueue,
        others: Transactions,
        *,
        foreign_keys: bool = True,
    ) -> None:
        """Raises DatabaseBusy if too many are open."""
        self._foreign_keys = foreign_keys
        self._engine, self._committing, self._writer, self._others = engine, committing, writer, others
        others.begins()
        self._loop = asyncio.get_running_loop()
        self._limit_s, self._limit = engine.limits.query_s, "query_s"
        self._timer = self._loop.call_later(self._limit_s, self._expire)
        self._deadline = 0.0
        self._turn: asyncio.Future[None] | None = None
        """The turn to write, None before the first write; resolving it gives the turn back."""
        self._reading: Reading | None = None
        self._sequence = 0
        """Number of a group that the state being read has at least."""
        self._expired = self._closed = False
        self._results: list[SqlResult] = []
        self._one_by_one = asyncio.Lock()

    @property
    def open(self) -> bool:
        """Return whether the transaction takes statements: it has neither ended nor expired."""
        return not self._closed and not self._expired

    # -- its time -----------------------------------------------------------------------------------------

    def _expire(self) -> None:
        self._expired = True
        if self._turn is not None and not self._closed:
            with suppress(HandleClosed):
                self._engine.run(self._engine.execution.roll_back).add_done_callback(self._rolled_back)
                return
        self._end()

    def _rolled_back(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled():
            done.exception()  # The engine failed: it tells everybody.
        self._end()

    def _end(self) -> None:
        if not self._closed:
            self._others.ends()
        self._closed = True
        self._timer.cancel()
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)
        reading, self._reading = self._reading, None
        if reading is not None:
            self._others.reading -= 1
            if self._one_by_one.locked():
                # A statement runs in another thread; the connection goes with it.
                self._loop.run_in_executor(None, reading.interrupt)
            else:
                reading.close()

    def _check(self) -> None:
        if self._expired:
            raise TransactionExpired(self._engine.database, self._limit_s, self._limit)
        if self._closed:
            raise HandleClosed(f"database {self._engine.database}: the transaction has ended; begin another one")

    # -- statements ---------------------------------------------------------------------------------------

    async def execute(self, sql: str, parameters: Parameters = ()) -> SqlResult:
        """Execute one statement. After an SqlError the transaction goes on without it.

        Raises DatabaseBusy where a first write has to wait for too long, or where others wrote since the first read
        (SQLITE_BUSY_SNAPSHOT: roll back and begin again, with mode="immediate"). After TransactionExpired,
        TransactionTooLarge and NotLeader it was rolled back.
        """
        one = statement(sql, parameters)
        async with self._one_by_one:
            self._check()
            if self._turn is None and only_reads(sql):
                try:
                    return await self._read(one)
                except SqlError as error:
                    if error.code != _READONLY:
                        raise
            if self._turn is None:
                await self.take_turn()
            execution = self._engine.execution
            try:
                result = await self._run(lambda: execution.statement(one, self._deadline))
            except BuckramError as error:
                if not execution.open:
                    # Some errors, of INSERT OR ROLLBACK for example, roll all of it back.
                    self._end()
                if self._expired:
                    raise TransactionExpired(self._engine.database, self._limit_s, self._limit) from None
                raise error
            self._results.append(counts_of(result))
            return result

    async def _run(self, work: Callable[[], T]) -> T:
        """Run work in the engine's thread; cancelling the caller does not stop it."""
        return await _shielded(self._engine.run(work))

    async def _read(self, one: Statement) -> SqlResult:
        """Execute a statement that reads in the state of the first read, beside writers and other readers."""
        if self._reading is None:
            self._others.begins_to_read()
            self._reading, self._sequence = Reading(self._engine), self._engine.sequence
        return await _shielded(self._others.read(self._reading, one))

    async def take_turn(self) -> None:
        """Wait for a turn and begin to write. Raises DatabaseBusy, NotLeader."""
        turn = await self._writer.turn()
        try:
            self._check()
            leadership, _ = await self._committing.leadership()
            await self._committing.prove()
            await self._engine.settled(self._committing.sequence)
            if self._reading is not None and self._engine.sequence != self._sequence:
                text = "others wrote since this transaction read first; roll it back and begin again"
                raise DatabaseBusy(self._engine.database, text, _BUSY_SNAPSHOT, "SQLITE_BUSY_SNAPSHOT")
            await self._engine.run(lambda: self._engine.execution.begin(leadership, self._foreign_keys))
            self._check()
        except BaseException:
            # It may have begun all the same, or begin yet: the next turn comes after this.
            with suppress(HandleClosed):
                self._engine.run(self._engine.execution.roll_back).add_done_callback(_seen)
            if not turn.done():
                turn.set_result(None)
            raise
        self._turn = turn
        reading, self._reading = self._reading, None
        if reading is not None:
            self._others.reading -= 1
            reading.close()
        self._timer.cancel()
        self._limit_s, self._limit = self._engine.limits.transaction_s, "transaction_s"
        self._deadline = self._engine.threads.now() + self._limit_s
        self._timer = self._loop.call_later(self._limit_s, self._expire)

    # -- the end ------------------------------------------------------------------------------------------

    async def commit(self, *, token: str | None = None) -> list[SqlResult]:
        """Commit, and return the counts of all statements. After an SqlError (a deferred constraint) it goes on.

        Under a `token` it is committed once: if something was under it before, this transaction is rolled back, and the
        counts are those of the first time. Raises NotLeader and TransactionExpired (rolled back), CommitUnknown, and
        DatabaseBusy (it goes on) where there is no room for new tokens.
        """
        receipt = None if token is None else Receipt(check_token(token), encode_counts(self._results))
        results = self._results
        async with self._one_by_one:
            self._check()
            if self._turn is None and receipt is not None:
                await self.take_turn()
            counts = self._committing.counts(receipt.token) if receipt is not None else None
            if counts is not None:
                results = decode_counts(counts)
                await self._roll_back()
            elif receipt is not None and (full := self._committing.full()) is not None:
                raise full
            elif self._turn is not None:
                await self._commit(receipt)
        self._end()
        return results

    async def _commit(self, receipt: Receipt | None) -> None:
        self._timer.cancel()
        token, writer = receipt.token if receipt is not None else None, self._writer
        work = self._engine.run(lambda: self._engine.execution.commit(receipt))
        if token is not None:
            writer.use(token)
            work.add_done_callback(lambda done: writer.unuse(token))
        try:
            await _shielded(work)  # Cancelling the caller does not stop it.
        except SqlError:
            if not self._engine.execution.open:  # As after a full disk: SQLite has rolled it back.
                self._end()
                raise
            self._timer = self._loop.call_later(max(self._deadline - self._engine.threads.now(), 0.0), self._expire)
            raise
        except BaseException as error:
            self._end()
            if isinstance(error, CommitUnknown) and receipt is not None:
                raise CommitUnknown(error.database, receipt.token, error.reason) from None
            raise

    async def rollback(self) -> None:
        """Roll back. No-op after the end."""
        async with self._one_by_one:
            if self.open and self._turn is not None:
                await self._roll_back()
        if not self._closed:
            self._end()

    async def _roll_back(self) -> None:
        self._timer.cancel()
        try:
            with suppress(BuckramError):
                await self._run(self._engine.execution.roll_back)
        finally:
            self._end()  # Also where the caller is cancelled: what is asked next comes after it.


async def _shielded(work: asyncio.Future[T]) -> T:
    """Wait for work that goes on if its caller is cancelled; then its error is dropped, without a log of asyncio's."""
    work.add_done_callback(_seen)
    return await asyncio.shield(work)


def _seen(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()  # The engine failed: it tells everybody.


async def begin_transaction(
    engine: Engine, committing: Committing, writer: WriteQueue, others: Transactions, mode: Mode, foreign_keys: bool
) -> OpenTransaction:
    """Begin a transaction with linearizable reads: this process still led when the call was made."""
    transaction = OpenTransaction(engine, committing, writer, others, foreign_keys=foreign_keys)
    try:
        if mode == "deferred" and foreign_keys:
            await committing.prove()
            await engine.settled(committing.sequence)
        else:
            await transaction.take_turn()
    except BaseException:
        await transaction.rollback()
        raise
    return transaction
