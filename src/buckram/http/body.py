"""Bodies of requests: read as a whole within limits, or in pieces for as long as the client sends.

Not here: what a connection may send before a handler looks at it (`connection.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request

from buckram.http.limits import HttpLimits
from buckram.http.problems import HttpProblem, too_large

T = TypeVar("T")


class ClientGone(HttpProblem):
    """The connection ended before the body did, or while the request was served. Nobody reads the answer."""

    def __init__(self, received: int) -> None:
        super().__init__(400, "CLIENT_GONE", f"the body was cut after {received} bytes; nothing of it counts")


async def read_body(request: Request, limits: HttpLimits) -> bytes:
    """The whole body. Raises HttpProblem: 413 over the limit, 408 for one that comes too slowly; ClientGone."""
    limit = limits.body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large("the body", int(declared), limit, do="send less at once")
    loop = asyncio.get_running_loop()
    began, found = loop.time(), bytearray()
    while True:
        latest = began + limits.patience_s + len(found) / limits.body_bytes_per_s
        try:
            async with asyncio.timeout_at(latest):
                message = await request.receive()
        except TimeoutError:
            raise HttpProblem(
                408,
                "BODY_TOO_SLOW",
                f"{len(found)} bytes of the body came in {loop.time() - began:.0f} s, the limit is "
                f"{limits.body_bytes_per_s} bytes a second: send it faster, or in smaller requests",
                value=len(found),
                limit=limits.body_bytes_per_s,
                do="send it faster, or in smaller requests",
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGone(len(found))
        found += message.get("body", b"")
        if len(found) > limit:
            raise too_large("the body", None, limit, do="send less at once")
        if not message.get("more_body", False):
            return bytes(found)


async def body_pieces(request: Request) -> AsyncIterator[bytes]:
    """The body as it comes, without a limit of time or size: an upload is open as long as a task writes it.

    It ends normally only if the body did. Raises ClientGone for one that was cut: nothing of it may become visible.
    """
    received = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone(received)
        if piece := message.get("body", b""):
            received += len(piece)
            yield piece
        if not message.get("more_body", False):
            return


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` gives; cancel it if the client goes meanwhile (ClientGone). The body must have been read."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone(0)
    finally:
        for one in (task, watch):
            if not one.done():
                one.cancel()
                with suppress(asyncio.CancelledError):
                    await one


__all__ = ["ClientGone", "body_pieces", "read_body", "while_connected"]
