"""Answers in pieces: files, objects and long lists, sent at the client's pace and bounded in memory.

The last piece is sent only when the source has ended without an error, so bytes that turn out to be wrong at their end
never make a complete answer. An error on the way ends the connection, so that the client sees that bytes are missing.
Not here: which bytes (`serve/gateway/objects/object_pages.py`, `serve/webhdfs/server.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from buckram.errors import BuckramError
from buckram.serve.http.body import ClientGone, while_connected
from buckram.serve.http.connection import ABORT
from buckram.serve.http.problems import HttpProblem

LOOK_S = 1.0
"""Interval of checks, while bytes are transferred, that the client may still do so, seconds."""
_log = logging.getLogger("buckram.http")


class _Over(Exception):
    """The client may not read the rest any more."""


class Looks:
    """Rate-limits the check `over` to one in LOOK_S, however often `why` is called; the first after `after_s`."""

    def __init__(self, over: Callable[[], str], *, after_s: float | None = None) -> None:
        self._over, self._loop = over, asyncio.get_running_loop()
        self._next = self._loop.time() + (LOOK_S if after_s is None else after_s)

    def why(self) -> str:
        """Return why a long transfer has to end; empty if it may go on, or the next check is not due."""
        if self._loop.time() < self._next:
            return ""
        why = self._over()
        self._next = self._loop.time() + LOOK_S
        return why


class PiecesAnswer(Response):
    """An answer of `size` bytes, or as many as come (None). `ended` is called at the end in any case.

    A client that reads nothing for `stuck_s` seconds is cut off, and so is one for which `over` returns a reason why
    it may not read on.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        *,
        size: int | None,
        media: str | None,
        stuck_s: float,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        over: Callable[[], str] = lambda: "",
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(b"", status, dict(headers or {}), media)
        del self.headers["content-length"]
        if size is not None:
            self.headers["content-length"] = str(size)
        self._pieces, self._stuck_s, self._over, self._ended = pieces, stuck_s, over, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it: called by the HTTP stack."""
        try:
            # Clients often close a file before its end, and then no more of it is to be read.
            await while_connected(Request(scope, receive), self._serve(send))
        except ClientGone:
            pass
        except TimeoutError:
            scope[ABORT]()
        except (BuckramError, _Over) as error:
            _log.warning("%s is cut off: %s", scope["path"], error)
            scope[ABORT]()
        finally:
            await self._pieces.aclose()
            self._ended()

    async def _serve(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        before, looks = b"", Looks(self._over, after_s=0.0)  # What was asked for may have taken long to get ready.
        async for piece in self._pieces:
            if why := looks.why():
                raise _Over(why)
            if before:
                await self._send(send, before, more=True)
            before = piece
        await self._send(send, before, more=False)

    async def _send(self, send: Send, piece: bytes, *, more: bool) -> None:
        async with asyncio.timeout(self._stuck_s):
            await send({"type": "http.response.body", "body": piece, "more_body": more})


async def while_allowed(
    pieces: AsyncIterator[bytes], over: Callable[[], str], undone: str
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces while their sender may send them (`over`). Raises HttpProblem 403, whose text includes
    `undone`.
    """
    looks = Looks(over)
    async for piece in pieces:
        _check(looks.why(), undone)
        yield piece
    _check(over(), undone)


def _check(why: str, undone: str) -> None:
    if why:
        raise HttpProblem(403, "FORBIDDEN", f"{why}; {undone}")


async def begun(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Return the same pieces after getting the first one; raises what getting it raises."""
    first = await anext(pieces, None)

    async def all_of_them() -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            if first is not None:
                yield first
                async for piece in pieces:
                    yield piece

    return all_of_them()
