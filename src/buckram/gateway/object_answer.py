"""An answer with the bytes of an object: read while they are sent, as fast as the client takes them.

The last piece is sent after the object was compared with its digest. What fails on the way ends the connection, so that
the client sees that bytes are missing. Not here: which bytes (`object_pages.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from buckram.errors import BuckramError
from buckram.http.body import ClientGone, while_connected
from buckram.http.connection import ABORT

LOOK_S = 1.0
"""So often it is looked, while bytes come or go, whether the client may still do that."""
_log = logging.getLogger("buckram.gateway")


class _Over(Exception):
    """The client may not read the object any more."""


class ObjectAnswer(Response):
    """`first` is the first piece, and `pieces` gives the others; `done` is called at the end, whatever happened.

    A client that takes nothing for `stuck_s` seconds is cut off, and one that may not read it any more, as `over` says.
    """

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        media: str,
        first: bytes,
        pieces: AsyncGenerator[bytes],
        stuck_s: float,
        over: Callable[[], str],
        done: Callable[[], None],
    ) -> None:
        super().__init__(b"", status, dict(headers), media)
        self._first, self._pieces, self._stuck_s, self._over, self._done = first, pieces, stuck_s, over, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it: called by the HTTP stack."""
        try:
            await while_connected(Request(scope, receive), self._serve(send))
        except ClientGone:
            pass
        except TimeoutError:
            scope[ABORT]()
        except (BuckramError, _Over) as error:
            _log.warning("an object was sent in part only: %s", error)
            scope[ABORT]()
        finally:
            await self._pieces.aclose()
            self._done()

    async def _serve(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        before, loop = self._first, asyncio.get_running_loop()
        look = loop.time() + LOOK_S
        async for piece in self._pieces:
            if loop.time() >= look:
                if why := self._over():
                    raise _Over(why)
                look = loop.time() + LOOK_S
            await self._send(send, before, more=True)
            before = piece
        await self._send(send, before, more=False)

    async def _send(self, send: Send, piece: bytes, *, more: bool) -> None:
        async with asyncio.timeout(self._stuck_s):
            await send({"type": "http.response.body", "body": piece, "more_body": more})


__all__ = ["LOOK_S", "ObjectAnswer"]
