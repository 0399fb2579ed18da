"""Executing requests on a stream: one result or error for each, in order."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from buckram.core.db.sql import SqlResult, SqlValue
from buckram.core.db.sql_text import argument_of, classify, own_call, placeholders, split
from buckram.errors import BuckramError, DatabaseBusy, NotLeader, SqlError
from buckram.serve.hrana.error_replies import EXPECTED, StreamRefusal, error_of
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.hrana.protocol.requests import (
    Batch,
    Close,
    CloseSql,
    Describe,
    Execute,
    GetAutocommit,
    Request,
    Script,
    SqlRef,
    Stmt,
    StoreSql,
    fusible,
)
from buckram.serve.hrana.protocol.values import encode_rows, encode_value
from buckram.serve.hrana.streams import Stream
from buckram.serve.http.limits import option_of
from buckram.state.db.table_engine.statements import after_comments


class SendOn(Exception):
    """Nothing was executed, because this replica does not lead (any more): forward the request to the leader."""


class Pipeline:
    """Executes the requests of one HTTP request. Raises SendOn if there is no leader here at the first statement."""

    def __init__(self, stream: Stream, limits: HranaLimits, *, fresh: bool, token: str | None = None) -> None:
        """Execute on a stream. `token`: makes the changes of the requests at most once. Raises InvalidArgument."""
        self._stream, self._limits, self._token = stream, limits, token
        if token is not None:
            stream.session.use_token(token)
        self.untouched = fresh
        """True if no statement has been executed on this stream."""
        self._room = limits.answer_bytes

    async def run(self, requests: tuple[Request, ...]) -> list[dict[str, Any]]:
        """All requests, also those after one that failed. Raises StreamRefusal for a token that is for none of them."""
        if self._token is not None and sum(isinstance(one, Execute | Batch | Script) for one in requests) != 1:
            raise _ambiguous("needs a request with one execute or one batch")
        results: list[dict[str, Any]] = []
        for request in requests:
            try:
                if self._stream.closed:
                    raise StreamRefusal("STREAM_CLOSED", "the stream was closed by a request before: open a new one")
                response = await self._respond(request)
                results.append({"type": "ok", "response": {"type": request.kind, **response}})
            except EXPECTED as error:
                results.append({"type": "error", "error": error_of(error)})
        self._end_token()
        return results

    def _end_token(self) -> None:
        """Drop the request's token, unless a transaction is open, which keeps it for its commit."""
        if self._token is not None and self._stream.session.autocommit:
            self._stream.session.use_token(None)

    async def _check_token(self, batch: Batch) -> None:
        if self._token is not None and len(batch.steps) > 1 and not await self._is_one_transaction(batch):
            raise _ambiguous("needs a batch of one statement or one transaction (BEGIN, statements, COMMIT, ROLLBACK)")

    async def execute(self, stmt: Stmt) -> dict[str, Any]:
        """A statement's result as JSON."""
        began = time.perf_counter()
        return self._result(stmt, await self._execute(stmt), time.perf_counter() - began)

    async def batch(self, batch: Batch) -> dict[str, Any]:
        """The results and errors of a batch as JSON."""
        await self._check_token(batch)
        session = self._stream.session
        fuses = session.autocommit and session.may_write and session.foreign_keys
        if fuses and await self._is_one_transaction(batch):
            found = await self._fused(batch)
            if found is not None:
                return found
        results: list[dict[str, Any] | None] = []
        errors: list[dict[str, Any] | None] = []
        outcomes: list[bool | None] = []
        for step in batch.steps:
            result = error = outcome = None
            if step.condition is None or step.condition.holds(outcomes, self._stream.session.autocommit):
                try:
                    result, outcome = await self.execute(step.stmt), True
                except EXPECTED as failed:
                    error, outcome = error_of(failed), False
            results.append(result)
            errors.append(error)
            outcomes.append(outcome)
        return {"step_results": results, "step_errors": errors}

    async def entries(self, batch: Batch) -> AsyncIterator[dict[str, Any]]:
        """The same as entries of a cursor."""
        await self._check_token(batch)
        outcomes: list[bool | None] = []
        for at, step in enumerate(batch.steps):
            outcome = None
            if step.condition is None or step.condition.holds(outcomes, self._stream.session.autocommit):
                try:
                    result = await self._execute(step.stmt)
                    yield {"type": "step_begin", "step": at, "cols": _columns(result)}
                    for row in result.rows if step.stmt.want_rows else ():
                        yield {"type": "row", "row": [encode_value(value) for value in row]}
                    yield {"type": "step_end", **_counts(result)}
                    outcome = True
                except EXPECTED as failed:
                    yield {"type": "step_error", "step": at, "error": error_of(failed)}
                    outcome = False
            outcomes.append(outcome)
        self._end_token()

    # -- one request --------------------------------------------------------------------------------------

    async def _respond(self, request: Request) -> dict[str, Any]:
        stream = self._stream
        match request:
            case Execute(stmt):
                return {"result": await self.execute(stmt)}
            case Batch():
                return {"result": await self.batch(request)}
            case Script(text):
                if self._token is not None:
                    raise _ambiguous("is for one statement or one batch, not for a script")
                for sql in split(self._sql(text)):
                    await self._execute(Stmt(SqlRef(sql, None)))
                return {}
            case Describe(text):
                return {"result": await self._describe(self._sql(text))}
            case StoreSql(sql_id, sql):
                stream.texts.store(sql_id, sql, self._limits)
            case CloseSql(sql_id):
                stream.texts.forget(sql_id)
            case GetAutocommit():
                return {"is_autocommit": stream.session.autocommit}
            case Close():
                stream.closed = True
        return {}

    def _sql(self, text: SqlRef) -> str:
        if text.sql is not None:
            return text.sql
        assert text.sql_id is not None
        return self._stream.texts.text(text.sql_id)

    async def _execute(self, stmt: Stmt) -> SqlResult:
        sql = self._sql(stmt.text)
        try:
            result = await self._stream.session.execute(sql, stmt.parameters)
        except NotLeader:
            if self.untouched:
                raise SendOn from None
            raise
        except BuckramError:
            self.untouched = False  # It may be committed all the same, in whole or in part.
            raise
        self.untouched = False
        return result

    async def _describe(self, sql: str) -> dict[str, Any]:
        found = await self._stream.session.describe(sql)
        columns = zip(found.columns, found.declared, strict=True)
        written = placeholders(sql)
        return {
            "params": [{"name": None if name is None else written.get(name, name)} for name in found.parameters],
            "cols": [{"name": name, "decltype": declared} for name, declared in columns],
            "is_explain": found.explain,
            "is_readonly": found.read_only,
        }

    # -- a batch that is one transaction ------------------------------------------------------------------

    async def _is_one_transaction(self, batch: Batch) -> bool:
        try:
            return fusible(batch.steps, [classify(self._sql(step.stmt.text)) for step in batch.steps])
        except StreamRefusal:
            return False

    async def _fused(self, batch: Batch) -> dict[str, Any] | None:
        """Return the result of the batch as one group; None if SQLite refused it and nothing was done, so that single
        steps will show which statement failed.
        """
        inner = [step.stmt for step in batch.steps[1:-2]]
        began = time.perf_counter()
        nothing, session = Stmt(SqlRef("", None)), self._stream.session
        try:
            first = await self._token_first(inner)
            statements = [(self._sql(one.text), one.parameters) for one in inner[len(first) :]]
            found = [*first, *await session.batch(statements)]
            if len(found) != len(inner):
                raise StreamRefusal(
                    "TOKEN_REUSED",
                    f"{len(found) - len(first)} statements were executed under the token before, and not "
                    f"{len(statements)}: each batch needs a token of its own",
                )
        except DatabaseBusy as error:
            return _failed_inside(batch, error)
        except SqlError:
            return None
        except NotLeader as error:
            if self.untouched:
                raise SendOn from None
            return _failed_inside(batch, error)
        except BuckramError as error:
            self.untouched = False  # It may be committed all the same.
            return _failed_inside(batch, error)
        self.untouched = False
        seconds = (time.perf_counter() - began) / len(inner)
        results: list[dict[str, Any] | None] = []
        errors: list[dict[str, Any] | None] = [None] * len(batch.steps)
        for stmt, result in zip((nothing, *inner, nothing), (_NOTHING, *found, _NOTHING), strict=True):
            try:
                results.append(self._result(stmt, result, seconds))
            except EXPECTED as error:
                errors[len(results)] = error_of(error)
                results.append(None)
        return {"step_results": [*results, None], "step_errors": errors}

    async def _token_first(self, inner: list[Stmt]) -> list[SqlResult]:
        """Return the result of `SELECT buckram_token(...)` if the transaction begins with it, else nothing."""
        call = own_call(after_comments(self._sql(inner[0].text)))
        if call is None or call.name != "buckram_token" or not isinstance(argument_of(call, inner[0].parameters), str):
            return []
        return [await self._stream.session.execute(self._sql(inner[0].text), inner[0].parameters)]

    # -- results ------------------------------------------------------------------------------------------

    def _result(self, stmt: Stmt, result: SqlResult, seconds: float) -> dict[str, Any]:
        rows: list[list[dict[str, Any]]] = []
        if stmt.want_rows and result.rows:
            self._room -= sum(_size(row) for row in result.rows)
            if self._room < 0:
                raise StreamRefusal(
                    "RESPONSE_TOO_LARGE",
                    f"the rows have more than {self._limits.answer_bytes} bytes, the limit for one request: the "
                    f"statement was executed; ask for fewer rows with LIMIT, or use a cursor "
                    f"({option_of('answer_bytes')})",
                )
            rows = encode_rows(result.rows)
        return {
            "cols": _columns(result),
            "rows": rows,
            **_counts(result),
            "rows_read": len(result.rows),
            "rows_written": result.rows_affected,
            "query_duration_ms": round(seconds * 1000, 3),
        }


_NOTHING = SqlResult((), (), [], 0, None)


def _failed_inside(batch: Batch, error: Exception) -> dict[str, Any]:
    """BEGIN succeeded and the rest did not, as clients expect an error of a whole batch."""
    errors: list[dict[str, Any] | None] = [None] * len(batch.steps)
    errors[1] = error_of(error)
    return {"step_results": [None] * len(batch.steps), "step_errors": errors}


def _ambiguous(why: str) -> StreamRefusal:
    return StreamRefusal("TOKEN_AMBIGUOUS", f"the header Buckram-Token {why}: nothing was done")


def _columns(result: SqlResult) -> list[dict[str, Any]]:
    columns = zip(result.columns, result.declared, strict=True)
    return [{"name": name, "decltype": declared} for name, declared in columns]


def _counts(result: SqlResult) -> dict[str, Any]:
    last = result.last_insert_rowid
    return {"affected_row_count": result.rows_affected, "last_insert_rowid": None if last is None else str(last)}


def _size(row: tuple[SqlValue, ...]) -> int:
    """Return the approximate bytes of a row in JSON."""
    return sum(len(value) + 40 if isinstance(value, str | bytes) else 50 for value in row)
