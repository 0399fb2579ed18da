"""Execution of HTTP requests: here, or by the leader, to which they are forwarded where this replica follows.

Not here: which database a request is for and who sends it (`serve/hrana/server.py`, `serve/gateway/database_pages.py`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from buckram.core.streams.metadata.transactions import HISTORY_HEADER
from buckram.errors import BuckramError, InvalidArgument, SqlError
from buckram.serve.hrana.error_replies import EXPECTED, StreamRefusal, error_of
from buckram.serve.hrana.forwarding import FORWARDED, rights_sent
from buckram.serve.hrana.pipeline import Pipeline, SendOn
from buckram.serve.hrana.protocol.requests import Batch, parse_batch, parse_cursor, parse_pipeline, parse_stmt
from buckram.serve.hrana.protocol.values import Malformed
from buckram.serve.hrana.streams import Stream
from buckram.serve.hrana.targets import AFTER, TOKEN, Target
from buckram.serve.hrana.websocket_streams import Places
from buckram.serve.http.problems import HttpProblem, json_answer
from buckram.serve.http.streamed_answers import Looks
from buckram.sql.session import SqlSession
from buckram.state.db.commits.write_queue import CALLER
from buckram.state.db.database import Database

OFFSET = "Buckram-Offset"
"""Header of answers: the answer reflects everything below this offset of the log."""
OF_STATE = (OFFSET, HISTORY_HEADER)
"""Headers that identify the state from which an answer was given."""
_PASSED_ON = (TOKEN, AFTER)


class Execution:
    """Executes requests with these databases and streams. Raises HttpProblem."""

    def __init__(self, places: Places) -> None:
        self._places, self._streams, self._limits = places, places.streams, places.limits

    async def answer(self, request: Request, target: Target, body: bytes) -> Response:
        """The answer to a request whose body has been read."""
        try:
            raw = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise HttpProblem(400, "PROTOCOL_ERROR", f"the body is not JSON: {error}") from None
        return await with_errors(self._on_database(request, target, raw, body))

    async def _on_database(self, request: Request, target: Target, raw: Any, body: bytes) -> Response:
        use = await self._places.databases.take(target.reading.database)
        try:
            return await self._execute(request, target, use.database, raw, body)
        except SendOn:
            return await self._send_on(request, target, use.database, raw, body)
        finally:
            use.give()

    async def _execute(self, request: Request, target: Target, database: Database, raw: Any, body: bytes) -> Response:
        CALLER.set(str(target.principal))
        baton = raw.get("baton") if isinstance(raw, dict) else None
        here = isinstance(baton, str) and self._streams.knows(baton)
        if not here and target.reading.consistency != "stale" and database.role != "leader":
            return await self._send_on(request, target, database, raw, body)

        def session() -> SqlSession:
            return self._places.session(database, target.reading, target.principal, target.may_write)

        if target.path.startswith("v1/"):
            return await self._version_1(request, target, session(), raw)
        if target.path.endswith("/cursor"):
            asked = parse_cursor(raw, self._places.sizes)
            stream = await self._stream(asked.baton, session, target)
            try:
                if target.after is not None:
                    stream.session.after = target.after
                work = Pipeline(stream, self._limits, fresh=False, token=target.token)
            except BaseException:
                await self._streams.drop(stream)
                raise
            lines = self._cursor(stream, work, asked.batch, target)
            return StreamingResponse(lines, headers=self._history(), media_type="application/json")
        pipeline = parse_pipeline(raw, self._places.sizes)
        stream = await self._stream(pipeline.baton, session, target)
        try:
            if target.after is not None:
                stream.session.after = target.after
            work = Pipeline(stream, self._limits, fresh=pipeline.baton is None, token=target.token)
            results = await work.run(pipeline.requests)
        except BaseException:
            await self._streams.drop(stream)
            raise
        answer = {"baton": self._streams.baton(stream), "base_url": None, "results": results}
        await self._streams.release(stream)
        return json_answer(request, answer, headers={OFFSET: str(database.applied), **self._history()})

    def _history(self) -> dict[str, str]:
        """Return the header with the mark of the metadata's history that this server's replicas belong to."""
        mark = self._places.databases.history_mark
        return {HISTORY_HEADER: mark} if mark else {}

    async def _stream(self, baton: str | None, session: Callable[[], SqlSession], target: Target) -> Stream:
        if baton is not None:
            return self._streams.take(baton, target.key, target.principal)
        self._streams.check_room(target.principal)
        use = await self._places.databases.take(target.reading.database)
        return self._streams.open(session(), target.key, target.principal, use)

    async def _cursor(self, stream: Stream, work: Pipeline, batch: Batch, target: Target) -> AsyncIterator[bytes]:
        """Lines of JSON. The stream takes the next request when they have all been sent."""
        ended, looks = False, Looks(target.over)
        try:
            yield _line({"baton": self._streams.baton(stream), "base_url": None})
            try:
                async for entry in work.entries(batch):
                    if why := looks.why():
                        yield _line({"type": "error", "error": {"message": why, "code": "FORBIDDEN"}})
                        return
                    yield _line(entry)
            except EXPECTED as error:
                yield _line({"type": "error", "error": error_of(error)})
            ended = True
        finally:
            # Who is cancelled here may not wait.
            self._streams.finish(stream, closed=not ended)

    async def _version_1(self, request: Request, target: Target, session: SqlSession, raw: Any) -> Response:
        """One statement or batch without a stream. The error of a statement is an error of HTTP."""
        stream = Stream(0, session, target.key, target.principal)

        def answer(value: Any, status: int = 200) -> Response:
            return json_answer(request, value, status, {OFFSET: str(session.database.applied), **self._history()})

        try:
            session.after = target.after
            pipeline = Pipeline(stream, self._limits, fresh=True, token=target.token)
            if not isinstance(raw, dict):
                raise Malformed("the body: needs an object")
            if target.path == "v1/batch":
                batch = parse_batch(raw.get("batch"), "batch", self._places.sizes)
                return answer({"result": await pipeline.batch(batch)})
            stmt = parse_stmt(raw.get("stmt"), "stmt")
            try:
                return answer({"result": await pipeline.execute(stmt)})
            except EXPECTED as error:
                return answer(error_of(error), 400)
        finally:
            await session.close()

    async def _send_on(self, request: Request, target: Target, database: Database, raw: Any, body: bytes) -> Response:
        """Forward a request to the leader. One that was forwarded before is refused with 421 instead: its first server
        looks for the leader again.
        """
        if FORWARDED in request.headers:
            raise HttpProblem(421, "NOT_LEADER", f"this server does not lead database {target.reading.database}")
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        headers |= rights_sent(target.may_write)
        path = f"/{target.reading.address}/{target.path}"
        while (found := await self._places.forwarder.send(database, path, headers, body, target.principal)) is None:
            with suppress(SendOn):  # It led when `send` looked, and leads no more: nothing was executed.
                return await self._execute(request, target, database, raw, body)
        answer = found.body
        if found.status == 200 and not target.path.startswith("v1/"):
            answer = _with_base_url(answer, f"{found.address.rstrip('/')}/{target.reading.address}/")
        # The leader's: this replica may be behind, or opened after a restore that the leader sat through.
        more = {name: found.headers[name.lower()] for name in OF_STATE if name.lower() in found.headers}
        return Response(answer, found.status, more, media_type="application/json")


async def with_errors(work: Awaitable[Response]) -> Response:
    """The answer of `work`; errors of a database are those of HTTP. Raises HttpProblem."""
    try:
        return await work
    except Malformed as error:
        raise HttpProblem(400, "PROTOCOL_ERROR", str(error)) from None
    except StreamRefusal as error:
        raise HttpProblem(400, error.code, str(error)) from None
    except InvalidArgument as error:
        raise HttpProblem(400, "ARGS_INVALID", str(error)) from None
    except SqlError as error:
        raise HttpProblem(503 if error.retryable else 403, error_of(error)["code"], str(error)) from None
    except BuckramError as error:
        problem = error_of(error)
        raise HttpProblem(503 if error.retryable else 500, problem["code"], problem["message"]) from error


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _with_base_url(answer: bytes, url: str) -> bytes:
    """Tell the client of a stream to go to the leader itself from now on."""
    first, newline, rest = answer.partition(b"\n")
    head = json.loads(first)
    if head.get("baton") is None or head.get("base_url") is not None:
        return answer
    return _line({**head, "base_url": url}).rstrip(b"\n") + newline + rest
