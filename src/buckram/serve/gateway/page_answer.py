"""An answer with a page of records, entries or rows: its memory is counted until it is sent, at the client's pace."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from buckram.serve.gateway.shared.memory_budget import MemoryReservation
from buckram.serve.http.connection import ABORT

_PIECE = 256 * 1024


class PageAnswer(Response):
    """A page; `held` is released when it is sent. A client that reads nothing for `stuck_s` seconds is cut off."""

    def __init__(
        self,
        content: bytes,
        headers: Mapping[str, str],
        media: str | None,
        held: MemoryReservation,
        stuck_s: float,
        *,
        status: int = 200,
    ) -> None:
        super().__init__(content, status, dict(headers), media)
        self._held, self._stuck_s = held, stuck_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it: called by the HTTP stack."""
        body = memoryview(self.body)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for at in range(0, max(len(body), 1), _PIECE):
                piece, more = bytes(body[at : at + _PIECE]), at + _PIECE < len(body)
                async with asyncio.timeout(self._stuck_s):
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
        except TimeoutError:
            scope[ABORT]()
        finally:
            self._held.release()


__all__ = ["PageAnswer"]
