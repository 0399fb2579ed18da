"""One caller's connection to a database: statements one after the other, and the caller's transaction.

What each statement means for the transaction is decided in `core/db/caller_transaction.py`. DB-API connections and the
streams of Hrana are sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from buckram.core.backoff import LEADER_WAIT
from buckram.core.db.caller_transaction import CallerTransaction, Do, TransactionGone, TransactionMisuse
from buckram.core.db.outcomes import check_token
from buckram.core.db.sql import Described, Parameters, SqlResult, foreign_keys_asked
from buckram.core.db.sql_text import ClassifiedStatement, Kind, OwnCall, argument_of, classify, is_single, own_call
from buckram.errors import BuckramError, InvalidArgument, NotLeader, SqlError
from buckram.runtime.process.retry import Retries
from buckram.state.db.commits.transactions import OpenTransaction, only_reads
from buckram.state.db.database import Database
from buckram.state.db.table_engine.statements import after_comments, first_word
from buckram.state.machine.machine import Consistency

T = TypeVar("T")
_HANDOVER_S = 1.0
"""A leader that steps down is followed by another one within this time."""
_NOTHING = SqlResult((), (), [], 0, None)


class SqlSession:
    """A connection. One call at a time. `close` rolls an open transaction back; the database stays open."""

    def __init__(
        self,
        database: Database,
        *,
        consistency: Consistency = "linearizable",
        at_most_s: float | None = None,
        leader_wait_s: float = 0.0,
        announced: str = "",
        may_write: bool = True,
        on_refused: Callable[[], None] | None = None,
    ) -> None:
        """`may_write`: whether statements may change the database; `on_refused` hears of those that may not.

        `leader_wait_s`: how long a statement waits if no replica leads, or this one, `announced` so, is about to.
        """
        if at_most_s is not None and consistency != "stale":
            raise InvalidArgument(f'at_most_s={at_most_s!r} is for consistency="stale", not {consistency!r}')
        self.database = database
        self._consistency, self._at_most_s, self._leader_wait_s = consistency, at_most_s, leader_wait_s
        self._announced, self.may_write, self._on_refused = announced, may_write, on_refused
        self._caller = CallerTransaction()
        self._transaction: OpenTransaction | None = None
        self._gone: BuckramError | None = None
        self._foreign_keys = True
        self._token: str | None = None
        """Token of the next commit, by which it is done once; None without one."""
        self.after: int | None = None
        """Reads of a replica see everything below this offset."""

    @property
    def autocommit(self) -> bool:
        """Return whether each statement is a transaction of its own now."""
        return self._caller.autocommit

    @property
    def foreign_keys(self) -> bool:
        """Return whether foreign keys are enforced. After PRAGMA foreign_keys = OFF the next transaction does not
        enforce them, and its end turns them on again.
        """
        return self._foreign_keys

    def use_token(self, token: str | None) -> None:
        """Have the next statement that writes, or the transaction that is open or begins next, done once under a token.

        One attempt takes it: whoever repeats what was under it says it again. None: no token. InvalidArgument.
        """
        if token is not None:
            check_token(token)
            if not self.may_write:
                raise self._refused("a token needs the permission `append` on this database")
        self._token = token

    async def batch(self, statements: Sequence[tuple[str, Parameters]]) -> list[SqlResult]:
        """Execute statements as one transaction, under the token. After an SqlError it is kept: nothing was done."""
        token, self._token = self._token, None
        try:
            return await self.database.batch(statements, token=token)
        except SqlError:
            self._token = token
            raise

    async def execute(self, sql: str, parameters: Parameters = ()) -> SqlResult:
        """Execute one statement. After a transaction was lost, each one raises the same error until ROLLBACK."""
        if not is_single(sql):
            raise self._error("there is more than one statement; send them one by one, or as a script")
        if (own := own_call(after_comments(sql))) is not None:
            return await self._own(own, parameters)
        if first_word(sql) == "PRAGMA":
            result = self._asked_for_keys(sql)
            if result is not None:
                return result
        statement = classify(sql)
        if not self.may_write and not await self._only_reads(statement, sql):
            raise self._refused("attempt to write without the permission `append` on this database")
        do = self._plan(statement)
        if do in (Do.BEGIN, Do.BEGIN_AND_RUN):
            result = await self._begin(statement, sql if do is Do.BEGIN_AND_RUN else "", parameters)
        elif do is Do.RUN_ALONE:
            return await self._run_alone(sql, parameters)
        elif do is Do.NOTHING:
            result = _NOTHING
            if statement.kind is Kind.ROLLBACK:
                self._gone = None
        else:
            assert self._transaction is not None
            result = await self._inside(self._transaction, do, sql, parameters)
        self._caller.done(statement, do)
        return result

    def _asked_for_keys(self, sql: str) -> SqlResult | None:
        """Answer a PRAGMA foreign_keys; None if the statement is another one, or is to be refused.

        In a transaction it changes nothing, as with SQLite. Turning them off again where they are off already is
        accepted, as tools do so; otherwise turning them off there is refused, since the tables that are dropped next
        would lose rows.
        """
        asked = foreign_keys_asked(after_comments(sql))
        if asked is None or self._gone is not None:
            return None
        if asked == "read":
            return SqlResult(("foreign_keys",), (None,), [(int(self._foreign_keys),)])
        if self._caller.autocommit:
            self._foreign_keys = asked == "on"
        elif asked == "off" and self._foreign_keys:
            return None
        return _NOTHING

    async def describe(self, sql: str) -> Described:
        """Return a statement's parameters and columns without executing it."""
        return await self.database.describe(sql)

    async def close(self) -> None:
        """Roll back the open transaction. Idempotent."""
        transaction, self._transaction, self._token = self._transaction, None, None
        self._foreign_keys = True
        self._caller.ended()
        if transaction is not None and transaction.open:
            await transaction.rollback()

    async def _own(self, call: OwnCall, parameters: Parameters) -> SqlResult:
        """Execute a call of one of the connection's own functions: buckram_offset, buckram_after, buckram_token."""
        self._plan(classify("SELECT 1"))
        value, result = argument_of(call, parameters), call.argument
        if call.name == "buckram_offset":
            if result:
                raise self._error("buckram_offset() takes no argument")
            return SqlResult((call.label,), (None,), [(self.database.applied,)])
        if call.name == "buckram_after":
            if type(value) is not int or value < 0:
                raise self._error(f"buckram_after({result}): needs an offset, an integer from 0 on")
            await self.database.applied_at_least(value)
            self.after = value
            return SqlResult((call.label,), (None,), [(value,)])
        if not isinstance(value, str):
            raise self._error(f"buckram_token({result}): needs the text of a token")
        self.use_token(value)
        try:
            outcome = await self._with_leader(lambda: self.database.outcome(value))
        except BaseException:
            self._token = None
            raise
        return SqlResult((call.label,), (None,), [(outcome,)])

    async def _only_reads(self, statement: ClassifiedStatement, sql: str) -> bool:
        """Return whether a statement only reads, by both SQLite and its text.

        SQLite alone reports too much as reading: a PRAGMA that runs ANALYZE as it sees fit, or a statement that would
        write under another schema.
        """
        reads = statement.kind is not Kind.OTHER or only_reads(sql)
        return reads and (await self.database.describe(sql)).read_only

    def _refused(self, message: str) -> SqlError:
        if self._on_refused is not None:
            self._on_refused()
        return self._error(message, 8, "SQLITE_READONLY")

    def _error(self, message: str, code: int = 1, name: str = "SQLITE_ERROR") -> SqlError:
        return SqlError(self.database.name, message, code, code, name)

    def _plan(self, statement: ClassifiedStatement) -> Do:
        try:
            return self._caller.plan(statement)
        except TransactionMisuse as error:
            raise self._error(str(error)) from None
        except TransactionGone:
            assert self._gone is not None
            raise self._gone from None

    async def _begin(self, statement: ClassifiedStatement, sql: str, parameters: Parameters) -> SqlResult:
        """Open a transaction and run a statement in it, if there is one."""
        transaction = await self._with_leader(
            lambda: self.database.begin(
                "immediate" if statement.mode == "immediate" else "deferred", foreign_keys=self._foreign_keys
            )
        )
        try:
            result = await transaction.execute(sql, parameters) if sql else _NOTHING
        except BaseException:
            if transaction.open:
                await transaction.rollback()
            raise
        self._transaction = transaction
        return result

    async def _run_alone(self, sql: str, parameters: Parameters) -> SqlResult:
        if not self._foreign_keys and not only_reads(sql) and first_word(sql) not in ("PRAGMA", "VACUUM"):
            return await self._run_without_keys(sql, parameters)
        if self._consistency == "linearizable":
            token = None
            if self._token is not None and not only_reads(sql):
                token, self._token = self._token, None
            return await self._with_leader(lambda: self.database.execute(sql, parameters, token=token))
        return await self.database.query(
            sql, parameters, consistency=self._consistency, at_most_s=self._at_most_s, after=self.after
        )

    async def _run_without_keys(self, sql: str, parameters: Parameters) -> SqlResult:
        """Run the statement in a transaction of its own, which checks foreign keys only at its commit."""
        token, self._token = self._token, None
        transaction = await self._with_leader(lambda: self.database.begin("immediate", foreign_keys=False))
        try:
            result = await transaction.execute(sql, parameters)
            await transaction.commit(token=token)
        finally:
            await transaction.rollback()
        return result

    async def _with_leader(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the call; retry NotLeader, after which nothing was done, while the leader changes.

        The leader that an error names may have just gone, so the call is retried for as long as that is possible, too.
        """
        retries = Retries(LEADER_WAIT, self._leader_wait_s)
        others = Retries(LEADER_WAIT, min(self._leader_wait_s, _HANDOVER_S))
        while True:
            try:
                return await call()
            except NotLeader as error:
                await (retries if error.leader in ("", self._announced) else others).wait(error)

    async def _inside(self, transaction: OpenTransaction, do: Do, sql: str, parameters: Parameters) -> SqlResult:
        if do is Do.RUN_INSIDE:
            return await self._run(transaction, sql, parameters)
        try:
            if do is Do.COMMIT:
                await transaction.commit(token=self._token)
            else:
                await transaction.rollback()
        except BaseException:
            # A commit that a deferred constraint forbids leaves the transaction open; after any other error it is over.
            if not transaction.open:
                self._transaction = self._token = None
                self._foreign_keys = True
                self._caller.ended()
            raise
        self._transaction = self._token = None
        self._foreign_keys = True
        return _NOTHING

    async def _run(self, transaction: OpenTransaction, sql: str, parameters: Parameters) -> SqlResult:
        """Run a statement in the transaction, and find out whether it is still open if that fails."""
        try:
            if self._caller.readonly and not await self._only_reads(classify(sql), sql):
                raise self._error("attempt to write in a transaction begun as read only", 8, "SQLITE_READONLY")
            return await transaction.execute(sql, parameters)
        except SqlError:
            # Some errors roll the whole transaction back, and SQLite's callers know which.
            if not transaction.open:
                self._transaction, self._foreign_keys, self._token = None, True, None
                self._caller.ended()
            raise
        except BuckramError as error:
            if not transaction.open:
                self._transaction, self._gone, self._token, self._foreign_keys = None, error, None, True
                self._caller.lost(str(error))
            raise
        except asyncio.CancelledError:
            await self.close()
            self._gone = self._error("a statement was cancelled, its transaction is rolled back", 9, "SQLITE_INTERRUPT")
            self._caller.lost(str(self._gone))
            raise
