"""SQLite without any replication behind the interface of a database: for tests of what stands on that interface."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import apsw
import apsw.ext

from buckram.sql.interface import Described, Parameters, SqlError, SqlResult, SqlValue, TransactionExpired


class PlainTransaction:
    """An open transaction, which keeps all others out."""

    def __init__(self, database: PlainDatabase) -> None:
        self._database, self.active, self.expired = database, True, False

    async def execute(self, sql: str, parameters: Parameters = ()) -> SqlResult:
        self._check()
        try:
            return self._database.run(sql, parameters)
        finally:
            if not self._database.connection.in_transaction:
                self._end()

    async def commit(self) -> None:
        self._check()
        self._database.run("COMMIT")
        self._end()

    async def rollback(self) -> None:
        self._check()
        self._database.run("ROLLBACK")
        self._end()

    def expire(self) -> None:
        self._database.run("ROLLBACK")
        self.expired = True
        self._end()

    def _check(self) -> None:
        if self.expired:
            raise TransactionExpired("the transaction was open for more than 5 s: do less in one")
        assert self.active

    def _end(self) -> None:
        if self.active:
            self.active = False
            self._database.turn.release()


class PlainDatabase:
    """One connection to an in-memory database."""

    def __init__(self, name: str = "shop/main") -> None:
        self.name, self.role = name, "leader"
        self.connection = apsw.Connection(":memory:")
        self.turn = asyncio.Lock()
        self.transactions: list[PlainTransaction] = []
        self.leader: str | None = None

    async def execute(self, sql: str, parameters: Parameters = (), *, token: str | None = None) -> SqlResult:
        async with self.turn:
            return self.run(sql, parameters)

    async def batch(self, statements: Sequence[tuple[str, Parameters]], *, token: str | None = None) -> list[SqlResult]:
        async with self.turn:
            with self.connection:
                return [self.run(sql, parameters) for sql, parameters in statements]

    async def query(self, sql: str, parameters: Parameters = (), **asked: Any) -> SqlResult:
        if not (await self.describe(sql)).read_only:
            raise SqlError("attempt to write a readonly database", 8, 8, "SQLITE_READONLY")
        return await self.execute(sql, parameters)

    async def begin(self, mode: Any = "deferred") -> PlainTransaction:
        await self.turn.acquire()
        self.run(f"BEGIN {mode}")
        self.transactions.append(PlainTransaction(self))
        return self.transactions[-1]

    async def describe(self, sql: str) -> Described:
        try:
            info = apsw.ext.query_info(self.connection, sql)
        except apsw.Error as error:
            raise _sql_error(error) from None
        described = info.description
        return Described(
            tuple(column[0] for column in described),
            tuple(column[1] for column in described),
            tuple(f":{name}" if name else None for name in info.bindings_names),
            bool(info.is_readonly),
            bool(info.is_explain),
        )

    async def leader_address(self) -> str | None:
        return self.leader

    async def aclose(self) -> None:
        self.connection.close()

    def run(self, sql: str, parameters: Parameters = ()) -> SqlResult:
        before = self.connection.total_changes()
        try:
            cursor = self.connection.execute(sql, parameters)
            try:
                described = cursor.description_full if hasattr(cursor, "description_full") else cursor.get_description()
            except apsw.ExecutionCompleteError:
                described = ()
            rows: list[tuple[SqlValue, ...]] = list(cursor)
        except apsw.Error as error:
            raise _sql_error(error) from None
        changed = self.connection.total_changes() - before
        return SqlResult(
            tuple(column[0] for column in described),
            tuple(column[1] for column in described),
            rows,
            self.connection.changes() if changed else 0,
            self.connection.last_insert_rowid(),
        )


def _sql_error(error: apsw.Error) -> SqlError:
    extended = getattr(error, "extendedresult", 1)
    code = getattr(error, "result", 1)
    name = apsw.mapping_extended_result_codes.get(extended) or apsw.mapping_result_codes.get(code, "SQLITE_ERROR")
    return SqlError(str(error).partition(": ")[2] or str(error), code, extended, str(name))
