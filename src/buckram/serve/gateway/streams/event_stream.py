"""An answer of server-sent events, written at the client's pace, which ends when the client disconnects.

Not here: the source of the events (`tails.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from buckram.errors import BuckramError
from buckram.serve.gateway.shared.error_answers import code_of
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.gateway.streams.tails import END, Tail
from buckram.serve.http.body import ClientGone, while_connected
from buckram.serve.http.connection import ABORT, PAUSED

MEDIA = "text/event-stream"
_HEARTBEAT = b": still there\n\n"
_LOOK_S = 2.0
"""Interval of checks that the client may still follow, seconds."""


class EventStream(Response):
    """The events of a tail. A client that reads nothing for `stuck_s` is cut off; nothing is buffered for it.

    `over` returns why the client may follow no longer; empty while it may.
    """

    media_type = MEDIA

    def __init__(self, tail: Tail, limits: GatewayLimits, over: Callable[[], str]) -> None:
        super().__init__(b"", 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._tail, self._limits, self._over = tail, limits, over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it: called by the HTTP stack."""
        try:
            await while_connected(Request(scope, receive), self._serve(scope, send))
        except ClientGone:
            pass
        except TimeoutError:  # what waits to be sent would wait for ever
            scope[ABORT]()
        finally:
            self._tail.close()

    async def _serve(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._send(scope, send, b"retry: 2000\n\n")
        more = True
        while more:
            data = await self._next()
            more = data is not None and not data.startswith(b"event: error")
            await self._send(scope, send, END if data is None else data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> bytes | None:
        loop = asyncio.get_running_loop()
        silent_until, data = loop.time() + self._limits.heartbeat_s, b""
        while not data and (left := silent_until - loop.time()) > 0:
            try:
                found = await self._tail.next(min(left, _LOOK_S))
            except BuckramError as error:
                return event("error", {"code": code_of(error), "message": str(error), "retryable": error.retryable})
            if why := self._over():
                return event("error", {"code": "UNAUTHORIZED", "message": why, "retryable": False})
            if found is None:
                return None
            data = found
        return data or _HEARTBEAT

    async def _send(self, scope: Scope, send: Send, data: bytes) -> None:
        message = {"type": "http.response.body", "body": data, "more_body": True}
        if not scope[PAUSED]():  # Thousands of tails would have as many timers in each write for nothing.
            await send(message)
            return
        async with asyncio.timeout(self._limits.stuck_s):
            await send(message)


def event(name: str, data: Mapping[str, object]) -> bytes:
    """One event with a name of its own, and JSON as its data."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
