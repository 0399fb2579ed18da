"""Hrana over WebSockets: many streams on one connection, each executing its requests in order.

A client authenticates in `hello`; its token and grants are checked with each request, as over HTTP. Requests wait here
within limits of number and bytes, beyond which reading pauses. A client that does not read is cut off. Not here: the
execution (`serve/hrana/websocket_streams.py`), the format of messages (`serve/hrana/protocol/messages.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from buckram.runtime.process.tasks import TaskScope
from buckram.serve.hrana.database_access import DatabaseAccess, may_change
from buckram.serve.hrana.error_replies import EXPECTED, StreamRefusal, error_of
from buckram.serve.hrana.protocol.messages import SUBPROTOCOLS, Asked, Hello, parse_message, with_texts
from buckram.serve.hrana.protocol.values import Malformed
from buckram.serve.hrana.streams import Texts
from buckram.serve.hrana.targets import Reading, parse_reading
from buckram.serve.hrana.websocket_streams import Lane, Places, Rights
from buckram.serve.http.connection import ABORT
from buckram.serve.http.limits import HttpLimits, option_of
from buckram.serve.http.origins import Origins
from buckram.serve.http.problems import HttpProblem, json_answer
from buckram.serve.http.refusal_audit import known_as, note_refused

_log = logging.getLogger("buckram.hrana")
_PAGE_BYTES = 1 << 20
"""Bytes after which the entries of a cursor are sent as one answer."""
_PROTOCOL_ERROR, _NOT_TEXT, _REFUSED, _GOING = 1002, 1003, 1008, 1012
"""Codes with which a WebSocket is closed."""
_REASON_BYTES = 120
Answer = Callable[[], Awaitable[str]]
"""Executes a request, and returns the response as JSON."""


class Asking(NamedTuple):
    """Authentication, authorization and allowed origins of a server's WebSockets."""

    access: DatabaseAccess
    origins: Origins


class Sockets:
    """The WebSockets of a server. `close` answers pending requests, then closes them."""

    def __init__(self, places: Places, asking: Asking, http_limits: HttpLimits) -> None:
        self._places, self._asking, self._http_limits = places, asking, http_limits
        self._open: set[_Connection] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, socket: WebSocket) -> None:
        """Serve one WebSocket, for as long as it is open."""
        request = _as_request(socket, "")
        try:
            self._asking.origins.check(request)
            wanted = parse_reading(socket.path_params["path"].strip("/") or socket.headers.get("buckram-database", ""))
            if self._asking.access.vouch is None:  # Nobody has to say who he is, so that is known now already.
                self._places.databases.find(wanted.database, socket.headers.get("host", ""))
            protocol = _protocol(socket.scope["subprotocols"])
        except HttpProblem as problem:
            note_refused(socket, problem)
            await socket.send_denial_response(json_answer(request, problem.content(), problem.status, problem.headers))
            return
        await socket.accept(protocol)
        connection = _Connection(socket, self._places, self._asking, wanted, self._http_limits)
        self._open.add(connection)
        try:
            await connection.serve()
        finally:
            self._open.discard(connection)

    async def close(self) -> None:
        """Accept no more, answer pending requests, and close all. Idempotent."""
        await asyncio.gather(*(connection.stop() for connection in list(self._open)))


class _Lines:
    """Pending requests of one stream, in order, and its open cursors."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.waiting: deque[tuple[Asked, Answer, int]] = deque()
        self.busy = False
        self.cursors: dict[int, AsyncGenerator[dict[str, Any]]] = {}


class _Connection:
    """One WebSocket."""

    def __init__(
        self, socket: WebSocket, places: Places, asking: Asking, reading: Reading, http_limits: HttpLimits
    ) -> None:
        self._socket, self._places, self._asking, self._reading = socket, places, asking, reading
        self._limits, self._http_limits = places.limits, http_limits
        self._jwt: str | None = None
        self._greeted = False
        self._texts = Texts()
        self._streams: dict[int, _Lines] = {}
        self._cursors: dict[int, _Lines] = {}
        self._scope = TaskScope("websocket")
        self._waiting = self._bytes = 0
        self._changed = asyncio.Event()
        """Set when something was answered."""
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()

    # -- the connection -----------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Read until the client disconnects, sends an invalid message, or the server stops."""
        loop = asyncio.get_running_loop()
        reader = asyncio.ensure_future(self._read())
        code, reason = _GOING, "the server stops"
        try:
            await asyncio.wait((reader, self._stopping), return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                code, reason = reader.result()
            else:
                reader.cancel()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._http_limits.drain_s):
                        while self._waiting:
                            await self._change()
        finally:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader
            await self._scope.close()
            for lines in list(self._streams.values()):
                await self._drop(lines)
            self._ended.set()
        if code and self._socket.application_state is WebSocketState.CONNECTED:
            # Who does not read would keep what was written for ever.
            loop.call_later(self._http_limits.patience_s, self._socket.scope[ABORT])
            with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
                async with asyncio.timeout(self._http_limits.patience_s):
                    await self._socket.close(code, reason.encode()[:_REASON_BYTES].decode(errors="ignore"))

    async def stop(self) -> None:
        """Close it when the pending requests are answered."""
        if not self._stopping.done():
            self._stopping.set_result(None)
        await self._ended.wait()

    async def _read(self) -> tuple[int, str]:
        """Return why reading ended: the code to close with, and a reason; 0 if the client disconnected."""
        patience = asyncio.timeout(self._http_limits.patience_s)
        try:
            async with patience:
                first = await self._message()
                patience.reschedule(None)
                while True:
                    message, size = first
                    if isinstance(message, Hello):
                        if not await self._hello(message):
                            return _REFUSED, "the sender is not known"
                    elif not self._greeted:
                        raise Malformed("the first message needs to be hello")
                    else:
                        await self._take(message, size)
                    first = await self._message()
        except Malformed as error:
            return _PROTOCOL_ERROR, str(error)
        except _NotText as error:
            return _NOT_TEXT, str(error)
        except WebSocketDisconnect:
            return 0, ""
        except TimeoutError:
            return _PROTOCOL_ERROR, f"no hello within {self._http_limits.patience_s:g} s"

    async def _message(self) -> tuple[Hello | Asked, int]:
        received = await self._socket.receive()
        if received["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(received.get("code", 1005))
        text = received.get("text")
        if text is None:
            raise _NotText("messages need to be text: JSON of hrana1 to hrana3")
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"a message is not JSON: {error}") from None
        return parse_message(raw), len(text)

    async def _send(self, text: str) -> None:
        try:
            async with asyncio.timeout(self._limits.unread_s):
                await self._socket.send_text(text)
        except TimeoutError:
            _log.warning(
                "a client of database %s read nothing for %g s: its WebSocket is closed (%s)",
                self._reading.database,
                self._limits.unread_s,
                option_of("unread_s"),
            )
            self._socket.scope[ABORT]()
        except (WebSocketDisconnect, RuntimeError):
            return  # The client has gone, which the reader is told.

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # -- who asks -----------------------------------------------------------------------------------------

    async def _hello(self, message: Hello) -> bool:
        self._jwt, self._greeted = message.jwt, True
        try:
            await self._rights()
        except HttpProblem as problem:
            note_refused(self._socket, problem)
            await self._send(_json({"type": "hello_error", "error": _problem(problem)}))
            return False
        await self._send(_json({"type": "hello_ok"}))
        return True

    async def _rights(self) -> Rights:
        """Raises HttpProblem 401, 403, and 404 for a database that is not there or may not be seen."""
        authorization = f"Bearer {self._jwt}" if self._jwt else self._socket.headers.get("authorization", "")
        principal = await self._asking.access.authenticate(_as_request(self._socket, authorization))
        known_as(self._socket, principal)
        allowed, host = self._asking.access.allowed(principal), self._socket.headers.get("host", "")
        name = self._places.databases.find(self._reading.database, host, lambda name: bool(allowed(name)))
        self._reading = self._reading._replace(database=name)
        may_write = may_change(self._asking.access, principal, name)
        return Rights(principal, may_write)

    # -- what is asked ------------------------------------------------------------------------------------

    async def _take(self, asked: Asked, size: int) -> None:
        """Have a request done in its turn, when there is room for it."""
        most_bytes = self._limits.frame_bytes
        while self._waiting >= self._limits.requests or (self._waiting and self._bytes + size > most_bytes):
            await self._change()
        self._waiting += 1
        self._bytes += size
        try:
            lines, answer = self._planned(asked)
        except EXPECTED as error:
            await self._answered(asked, _response_error(asked, error_of(error)), size)
            return
        if lines is None:
            await self._answered(asked, _response_ok(asked, {}), size)
            return
        lines.waiting.append((asked, answer, size))
        if not lines.busy:
            lines.busy = True
            self._scope.spawn(self._work(lines), "stream")

    async def _work(self, lines: _Lines) -> None:
        """Execute the requests of one stream, one after the other."""
        while lines.waiting:
            asked, answer, size = lines.waiting.popleft()
            try:
                text = await answer()
            except EXPECTED as error:
                text = _response_error(asked, error_of(error))
            except HttpProblem as problem:
                note_refused(self._socket, problem)
                text = _response_error(asked, _problem(problem))
            except Exception as error:
                _log.exception("a request on a WebSocket failed")
                message = f"an unexpected {type(error).__name__} in the server, which its log describes"
                text = _response_error(asked, {"message": message, "code": "INTERNAL_ERROR"})
            await self._answered(asked, text, size)
        lines.busy = False

    async def _answered(self, asked: Asked, text: str, size: int) -> None:
        try:
            await self._send(text)
        finally:
            self._waiting -= 1
            self._bytes -= size
            self._changed.set()

    def _planned(self, asked: Asked) -> tuple[_Lines | None, Answer]:
        """Return the stream for whose turn a request has to wait, None if it is done at once, and its execution.
        Raises EXPECTED.
        """
        match asked.kind:
            case "store_sql":
                self._texts.store(asked.sql_id, asked.sql, self._limits)
            case "close_sql":
                self._texts.forget(asked.sql_id)
            case "open_stream":
                return self._open_stream(asked)
            case "close_stream":
                lines = self._streams.pop(asked.stream, None)
                if lines is not None:
                    return lines, lambda: self._close_stream(asked, lines)
            case "open_cursor":
                return self._open_cursor(asked)
            case "fetch_cursor":
                found = self._of_cursor(asked)
                return found, lambda: self._fetch(asked, found)
            case "close_cursor":
                closing = self._cursors.pop(asked.cursor, None)
                if closing is not None:
                    return closing, lambda: self._close_cursor(asked, closing)
            case _:
                one, raw = self._of_stream(asked), with_texts(asked.raw, self._texts.text)
                return one, lambda: self._ask(asked, one, raw)
        return None, _nothing

    def _of_stream(self, asked: Asked) -> _Lines:
        if asked.stream not in self._streams:
            raise StreamRefusal("STREAM_NOT_FOUND", f"there is no stream {asked.stream}: open it first")
        return self._streams[asked.stream]

    def _of_cursor(self, asked: Asked) -> _Lines:
        if asked.cursor not in self._cursors:
            raise StreamRefusal("CURSOR_NOT_FOUND", f"there is no cursor {asked.cursor}: open it first")
        return self._cursors[asked.cursor]

    def _open_stream(self, asked: Asked) -> tuple[_Lines, Answer]:
        if asked.stream in self._streams:
            raise StreamRefusal("STREAM_EXISTS", f"stream {asked.stream} is open already: close it, or use another id")
        if len(self._streams) >= self._limits.connection_streams:
            raise StreamRefusal(
                "TOO_MANY_STREAMS",
                f"{len(self._streams)} streams are open on this connection: close some "
                f"({option_of('connection_streams')})",
            )
        lines = self._streams[asked.stream] = _Lines(Lane(self._places, self._reading))

        async def opened() -> str:
            await lines.lane.open(await self._rights())
            return _response_ok(asked, {})

        return lines, opened

    async def _close_stream(self, asked: Asked, lines: _Lines) -> str:
        await self._drop(lines)
        return _response_ok(asked, {})

    async def _drop(self, lines: _Lines) -> None:
        for cursor_id, cursor in lines.cursors.items():
            if self._cursors.get(cursor_id) is lines:
                del self._cursors[cursor_id]
            await cursor.aclose()
        lines.cursors.clear()
        await lines.lane.close()

    async def _ask(self, asked: Asked, lines: _Lines, raw: dict[str, Any]) -> str:
        if lines.cursors:
            raise StreamRefusal("CURSOR_OPEN", "a cursor of this stream is open: close it first, or use another stream")
        given = await lines.lane.ask(raw, await self._rights())
        if given["type"] == "error":
            return _response_error(asked, given["error"])
        return _json({"type": "response_ok", "request_id": asked.id, "response": given["response"]})

    # -- cursors ------------------------------------------------------------------------------------------

    def _open_cursor(self, asked: Asked) -> tuple[_Lines, Answer]:
        if asked.cursor in self._cursors:
            raise StreamRefusal("CURSOR_EXISTS", f"cursor {asked.cursor} is open already: close it, or use another id")
        if len(self._cursors) >= self._limits.cursors:
            raise StreamRefusal(
                "TOO_MANY_CURSORS",
                f"{len(self._cursors)} cursors are open on this connection: close some ({option_of('cursors')})",
            )
        lines, raw = self._of_stream(asked), with_texts(asked.raw, self._texts.text)
        self._cursors[asked.cursor] = lines

        async def opened() -> str:
            if lines.cursors:
                raise StreamRefusal("CURSOR_OPEN", "another cursor of this stream is open: close it first")
            lines.cursors[asked.cursor] = lines.lane.entries(raw.get("batch"), await self._rights())
            return _response_ok(asked, {})

        return lines, opened

    async def _fetch(self, asked: Asked, lines: _Lines) -> str:
        cursor = lines.cursors.get(asked.cursor)
        if cursor is None:
            raise StreamRefusal("CURSOR_NOT_FOUND", f"there is no cursor {asked.cursor}: open it first")
        await self._rights()
        texts, size, done = list[str](), 0, "true"
        async for entry in cursor:
            texts.append(_json(entry))
            size += len(texts[-1])
            if len(texts) >= asked.most or size >= _PAGE_BYTES:
                done = "false"
                break
        response = f'{{"type":"fetch_cursor","entries":[{",".join(texts)}],"done":{done}}}'
        return f'{{"type":"response_ok","request_id":{asked.id},"response":{response}}}'

    async def _close_cursor(self, asked: Asked, lines: _Lines) -> str:
        cursor = lines.cursors.pop(asked.cursor, None)
        if cursor is not None:
            await cursor.aclose()
        return _response_ok(asked, {})


class _NotText(Exception):
    """A message in bytes."""


async def _nothing() -> str:
    return ""


def _as_request(socket: WebSocket, authorization: str) -> Request:
    """Return the WebSocket's opening request with another Authorization header, to be checked like other requests."""
    headers = socket.scope["headers"]
    if authorization:
        headers = [one for one in headers if one[0] != b"authorization"]
        headers.append((b"authorization", authorization.encode("latin-1")))
    return Request({**socket.scope, "type": "http", "method": "GET", "headers": headers})


def _protocol(offered: list[str]) -> str | None:
    """The version to speak; a client that offers none speaks the first one. Raises HttpProblem."""
    found = next((one for one in SUBPROTOCOLS if one in offered), None)
    if offered and found is None:
        raise HttpProblem(
            400,
            "NO_PROTOCOL",
            f"Sec-WebSocket-Protocol: none of {', '.join(SUBPROTOCOLS)} is offered, which are served",
        )
    return found


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _problem(problem: HttpProblem) -> dict[str, Any]:
    return {"message": problem.message, "code": problem.code}


def _response_ok(asked: Asked, response: dict[str, Any]) -> str:
    return _json({"type": "response_ok", "request_id": asked.id, "response": {"type": asked.kind, **response}})


def _response_error(asked: Asked, error: dict[str, Any]) -> str:
    return _json({"type": "response_error", "request_id": asked.id, "error": error})
