"""Limit of the bytes of bodies and answers that a gateway has in memory at once, for all of its clients.

The memory of an answer with a page of records, entries or rows is counted until it is sent, at the client's pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from buckram.core.tenants.fair_share import FairShare
from buckram.serve.http.connection import ABORT
from buckram.serve.http.problems import full

# -- the budget -------------------------------------------------------------------------------------------


class MemoryReservation:
    """Memory that one request holds: `add` more, and `release` all of it. Made by `MemoryBudget.held`."""

    def __init__(self, room: MemoryBudget, holder: str) -> None:
        self._room, self._holder, self._size = room, holder, 0

    def add(self, size: int) -> None:
        """Hold so many bytes more. Raises HttpProblem 503 where there is no room for them."""
        self._room.check(self._holder, size)
        self.count(size)

    def count(self, size: int) -> None:
        """Hold so many bytes more that are there already, whether there is room for them or not."""
        self._room.share.take(self._holder, size)
        self._size += size

    def release(self) -> None:
        """Hold nothing any more. Idempotent."""
        self._room.share.give(self._holder, self._size)
        self._size = 0


class MemoryBudget:
    """Counts the bytes in memory. Beyond the limit a request gets 503 before anything of it is read.

    Holders are principals (`holder_of`), each with a share, so that no single one takes all of it.
    """

    def __init__(self, limit: int) -> None:
        self.share = FairShare(limit)

    @property
    def used(self) -> int:
        """Bytes that are in memory."""
        return self.share.total

    def held(self, holder: str) -> MemoryReservation:
        """Room that is held piece by piece, until it is released."""
        return MemoryReservation(self, holder)

    @contextmanager
    def holding(self, holder: str, size: int) -> Iterator[None]:
        """Hold `size` bytes meanwhile. Raises HttpProblem 503."""
        held = self.held(holder)
        held.add(size)
        try:
            yield
        finally:
            held.release()

    def check(self, holder: str, size: int) -> None:
        """Raise HttpProblem 503 if there is no room for this many bytes more."""
        share = self.share
        if not share.has_room(holder, size):
            what = share.said(holder, "bytes of bodies and answers are in memory")
            do = "send the request again later, or to another gateway"
            raise full("GATEWAY_FULL", what, self.used, share.limit, option="buffered_bytes", do=do, retry_after_s=1)


# -- answers that count -----------------------------------------------------------------------------------

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
