"""Connections of uvicorn with limits: heads in bytes and time, connections in number, bodies that nobody reads.

uvicorn leaves these to a proxy in front of it. Errors before a request reaches its handler are JSON too. Bytes of a
path that are not ASCII are taken as if they were %-encoded, as clients of Hadoop send them. The head of an answer and
what comes first of its body are one write. A WebSocket can be aborted at once, so that a client that reads nothing
holds no memory; its messages are not compressed, so that what a client sends takes as much memory as it has sent, and
its first message, which authenticates, is small. Not here: the protocol of the messages.
"""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any, ClassVar, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.events import BytesMessage, Request, TextMessage

from buckram.serve.http.limits import LOGIN_BYTES, HttpLimits, option_of
from buckram.serve.http.pending_connections import Heads
from buckram.serve.http.problems import HttpProblem, full, too_large

ABORT = "buckram.abort"
"""In the scope of each request: a function that ends its connection at once, and drops what waits to be sent."""
PAUSED = "buckram.paused"
"""Key in the scope of each request: a function that returns whether sending would wait for the client."""
_HEADER_COST = 150
"""Bytes of memory that a header takes beside its own, roughly."""


# -- HTTP -------------------------------------------------------------------------------------------------


class Connection(HttpToolsProtocol):
    """One connection. `limited` makes the class for a server's limits: uvicorn wants a class and constructs it."""

    limits: ClassVar[HttpLimits] = HttpLimits()
    heads: ClassVar[Heads] = Heads(limits)
    """The server's connections that have not sent a complete head."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._in_head = False
        self._in_line = True
        """True if the next byte is of a request line. The parser accepts no line with bytes that are not ASCII."""
        self._head_bytes = self._head_count = 0
        """Bytes of the head's complete lines, and the number of its headers."""
        self._raw_bytes = 0
        """Bytes of the chunks that hold nothing but this head."""
        self._begun = 0
        """Number of requests that began in the chunk being parsed."""
        self._owes_head = False
        """True while this connection is counted in `heads`."""
        self._received = False
        self._body_ended = True
        self._discarded = 0
        self._refusal: HttpProblem | None = None
        self._timer: asyncio.TimerHandle | None = None

    # -- the transport ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        limit = self.limits.connections
        if len(self.connections) > limit and not self.heads.make_room():
            count, do = len(self.connections), "close some, or try later"
            what = f"{count} connections are open"
            self._refuse(full("TOO_MANY_CONNECTIONS", what, count, limit, option="connections", do=do, retry_after_s=1))
            return
        self._begin_wait(self._head_too_slow)
        self._hold_head(0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        self._leave_heads()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        # The scope knows this connection: a head would stay until the garbage of the process is collected.
        self.scope, self.headers = cast("Any", None), []

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._received = True
        in_head, between, self._begun = self._in_head, self._body_ended, 0
        if self._in_line:
            data = self._readable_line(data)
        super().data_received(data)
        if self._in_head and self._refusal is None:
            self._part_of_head(len(data), all_its_own=self._begun == int(not in_head) and (in_head or between))

    def _part_of_head(self, size: int, *, all_its_own: bool) -> None:
        """Account for a chunk that ended within a head: how much of its last line was parsed is unknown."""
        if all_its_own:
            self._raw_bytes += size
            if self._raw_bytes > self.limits.head_bytes:
                self._refuse(self._head_too_large(None))
                return
        parsed = max(self._head_bytes, self._raw_bytes if all_its_own else size)
        self._hold_head(parsed + _HEADER_COST * self._head_count)

    def _hold_head(self, size: int) -> None:
        self._owes_head = True
        self.heads.hold(self, size)

    def _leave_heads(self) -> None:
        if self._owes_head:
            self._owes_head = False
            self.heads.leave(self)

    def cut_off(self) -> None:
        """End it at once, for another one that needs its place."""
        self._owes_head = False
        self._end_wait()
        self._forget_head()
        self.transport.abort()

    def _forget_head(self) -> None:
        """Free the headers of an incomplete head now: the loop may end this connection after it read many others."""
        if self._in_head:
            self.headers.clear()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, cast("Any", _OneWrite(cycle, app)))

    # -- the parser ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast("dict[str, Any]", self.scope)
        scope[ABORT], scope[PAUSED] = self.transport.abort, self._is_paused
        self._in_head, self._body_ended = True, False
        self._head_bytes = self._head_count = self._raw_bytes = 0
        self._begun += 1
        if self._timer is None:
            self._begin_wait(self._head_too_slow)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._in_line = False
        self._head_count += 1
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._in_line, self._discarded = False, False, 0
        if self._timer is not None:
            self._end_wait()
        if self._owes_head:
            self._leave_heads()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._discarded += len(body)
            if self._discarded > self.limits.discarded_bytes:
                self.transport.abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._body_ended = self._in_line = True
        if self._timer is not None:
            self._end_wait()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self.cycle.body = bytearray()  # what nobody read of it would stay as long as the connection does
        super().on_response_complete()
        if not self._body_ended and not self._in_head and not self.pipeline:
            self._begin_wait(self.transport.close)

    def _is_paused(self) -> bool:
        return self.flow.write_paused

    def _readable_line(self, data: bytes) -> bytes:
        """The bytes of a request line that are not ASCII %-encoded."""
        end = data.find(b"\n")
        self._in_line = end < 0
        line = data if end < 0 else data[:end]
        if line.isascii():
            return data
        return b"".join(b"%%%02X" % byte if byte > 0x7F else bytes((byte,)) for byte in line) + data[len(line) :]

    def _count(self, size: int) -> None:
        """Add to the size of the head. Raises HttpProblem beyond a limit, which the parser passes on as an error."""
        if self._in_head:
            self._head_bytes += size
            if self._head_bytes > self.limits.head_bytes:
                self._refusal = self._head_too_large(self._head_bytes)
                raise self._refusal
            if self._head_count > self.limits.headers:
                self._refusal = self._too_many_headers()
                raise self._refusal

    # -- what is refused ----------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self._refuse(
            self._refusal
            or HttpProblem(
                400,
                "NOT_HTTP",
                "this is no HTTP/1.1 request that the server understands: check the client, and any proxy on the way",
            )
        )

    def _head_too_large(self, size: int | None) -> HttpProblem:
        return too_large(
            "the head of the request",
            size,
            self.limits.head_bytes,
            status=431,
            do=f"send fewer or shorter headers ({option_of('head_bytes')})",
        )

    def _too_many_headers(self) -> HttpProblem:
        return HttpProblem(
            431,
            "TOO_MANY_HEADERS",
            f"the request has more than {self.limits.headers} headers, the limit: send fewer ({option_of('headers')})",
            limit=self.limits.headers,
            do="send fewer",
        )

    def _head_too_slow(self) -> None:
        if not self._received:
            self.transport.close()
            return
        self._refuse(
            HttpProblem(
                408,
                "HEAD_TOO_SLOW",
                f"the head of the request did not come within {self.limits.patience_s:g} s: send it at once "
                f"({option_of('patience_s')})",
                limit=self.limits.patience_s,
                do="send it at once",
            )
        )

    def _refuse(self, problem: HttpProblem) -> None:
        self._refusal = problem
        problem.__traceback__ = None  # which holds what came, and would as long as the connection does
        self._end_wait()
        self._leave_heads()
        self._forget_head()
        content = json.dumps(problem.content()).encode()
        head = [STATUS_LINE[problem.status], b"content-type: application/json\r\n", b"connection: close\r\n"]
        head += [f"{name}: {value}\r\n".encode() for name, value in problem.headers.items()]
        self.transport.write(b"".join([*head, b"content-length: %d\r\n\r\n" % len(content), content]))
        self.transport.close()

    # -- the one timer ------------------------------------------------------------------------------------

    def _begin_wait(self, expired: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self.limits.patience_s, expired)

    def _end_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _OneWrite:
    """The application of one request: the head of its answer is written together with the first of its body.

    A request that a stopping server cancels ends with its connection: the 500 that uvicorn would send says that it
    failed, and nobody knows what it has done.
    """

    __slots__ = ("_app", "_cycle", "_head")

    def __init__(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:
        self._cycle, self._app = cycle, app
        self._head: Message | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, self._send)
        except asyncio.CancelledError:
            self._cycle.transport.abort()
            raise

    async def _send(self, message: Message) -> None:
        cycle, head = self._cycle, self._head
        if head is None and message["type"] == "http.response.start":
            self._head = message
            return
        if head is None:
            await cycle.send(cast("Any", message))
            return
        self._head = None
        transport = cycle.transport
        gathered = _Gathered(transport)
        cycle.transport = cast("asyncio.Transport", gathered)
        try:
            await cycle.send(cast("Any", head))
            await cycle.send(cast("Any", message))
        finally:
            cycle.transport = transport
            gathered.flush()


class _Gathered:
    """A transport that keeps what is written until it is flushed."""

    __slots__ = ("_closed", "_data", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._data: list[bytes] = []
        self._closed = False

    def write(self, data: bytes) -> None:
        self._data.append(data)

    def close(self) -> None:
        self._closed = True

    def is_closing(self) -> bool:
        return self._closed or self._transport.is_closing()

    def flush(self) -> None:
        if self._data:
            self._transport.write(b"".join(self._data))
        if self._closed:
            self._transport.close()


def limited(limits: HttpLimits) -> type[Connection]:
    """The class of the connections of a server with these limits."""
    return type("LimitedConnection", (Connection,), {"limits": limits, "heads": Heads(limits)})


# -- WebSockets -------------------------------------------------------------------------------------------


class Socket(WSProtocol):
    """One connection; uvicorn constructs it."""

    def __init__(self, config: Config, *given: Any, **named: Any) -> None:
        first = copy.copy(config)
        first.ws_max_size = min(config.ws_max_size, LOGIN_BYTES)
        super().__init__(first, *given, **named)
        self._config = config

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        cast("dict[str, Any]", self.scope)[ABORT] = self.transport.abort

    def handle_message(self, event: TextMessage | BytesMessage) -> None:
        super().handle_message(event)
        if event.message_finished and self.config is not self._config:
            self.config = self._config
            self.buffer.max_length = self._config.ws_max_size

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        # To close it would wait until the client has read what was written.
        self.transport.abort()
