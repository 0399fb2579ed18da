"""Answers in pieces: files and long lists, as fast as the client takes them and bounded in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from buckram.errors import BuckramError
from buckram.http.body import ClientGone, while_connected
from buckram.http.connection import ABORT
from buckram.webhdfs.problems import STANDBY, RemoteProblem

_log = logging.getLogger("buckram.webhdfs")


class Transfers:
    """Counts files that go in or out; who would go over the limit is told to come again, or elsewhere."""

    def __init__(self, limit: int) -> None:
        self.limit, self.now = limit, 0

    def begin(self) -> Callable[[], None]:
        """Count one; the value ends it, once however often it is called. Raises RemoteProblem."""
        if self.now >= self.limit:
            raise RemoteProblem(
                STANDBY,
                f"{self.now} files are read or written through this gateway, the limit is {self.limit}: try again, or "
                "use another gateway",
            )
        self.now += 1
        left = [self]

        def end() -> None:
            if left:
                left.pop().now -= 1

        return end

    @contextmanager
    def one(self) -> Iterator[None]:
        """The same for a block."""
        end = self.begin()
        try:
            yield
        finally:
            end()


class PiecesAnswer(Response):
    """`size` bytes, or as many as come; a client that takes nothing for `stuck_s` is cut off.

    Bytes that cannot be read end the connection before its time, so that nobody takes what came for all there is.
    `ended` is called at the end.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        *,
        size: int | None,
        media: str | None,
        stuck_s: float,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(b"", 200, media_type=media)
        del self.headers["content-length"]
        if size is not None:
            self.headers["content-length"] = str(size)
        self._pieces, self._stuck_s, self._ended = pieces, stuck_s, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it: called by the HTTP stack."""
        try:
            # Clients often close a file before its end, and then no more of it is to be read.
            await while_connected(Request(scope, receive), self._send(send))
        except ClientGone:
            pass
        except TimeoutError:
            scope[ABORT]()
        except BuckramError as error:
            _log.warning("webhdfs: %s is cut off: %s", scope["path"], error)
            scope[ABORT]()
        finally:
            await self._pieces.aclose()
            self._ended()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for piece in self._pieces:
            async with asyncio.timeout(self._stuck_s):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def begun(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same pieces, the first of which is there already; raises what getting it raises."""
    first = await anext(pieces, None)

    async def all_of_them() -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            if first is not None:
                yield first
                async for piece in pieces:
                    yield piece

    return all_of_them()


__all__ = ["PiecesAnswer", "Transfers", "begun"]
