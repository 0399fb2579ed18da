"""Bodies of requests: read as a whole within limits, or in pieces for as long as the client sends.

Not here: what a connection may send before a handler looks at it (`connection.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request

from buckram.serve.http.limits import HttpLimits, option_of
from buckram.serve.http.problems import HttpProblem, header, too_large

T = TypeVar("T")


class ClientGone(HttpProblem):
    """The client disconnected before its body ended or while the request was served; the answer has no reader."""

    def __init__(self, received: int) -> None:
        super().__init__(400, "CLIENT_GONE", f"the body was cut after {received} bytes; nothing of it is used")


LESS = f"send less at once ({option_of('body_bytes')})"


async def read_body(request: Request, limits: HttpLimits, *, do: str = LESS) -> bytes:
    """The whole body. Raises HttpProblem: 413 over the limit, 408 for one that comes too slowly; ClientGone."""
    found = bytearray()
    async for piece in limited_pieces(request, limits, limits.body_bytes, do=do):
        found += piece
    return bytes(found)


async def limited_pieces(request: Request, limits: HttpLimits, limit: int, *, do: str) -> AsyncIterator[bytes]:
    """Yield the body as it arrives, at most `limit` bytes; `do`: advice in the error for a larger one.

    Raises as `read_body`. The rate limit counts only time spent waiting for the client, not handling the pieces.
    """
    declared = header(request, b"content-length")
    if declared.isdigit() and int(declared) > limit:
        raise too_large("the body", int(declared), limit, do=do)
    loop = asyncio.get_running_loop()
    received, waited = 0, 0.0
    while True:
        began = loop.time()
        try:
            async with asyncio.timeout(limits.patience_s + received / limits.body_bytes_per_s - waited):
                message = await request.receive()
        except TimeoutError:
            raise _too_slow(received, waited + loop.time() - began, limits) from None
        waited += loop.time() - began
        if message["type"] == "http.disconnect":
            raise ClientGone(received)
        piece = message.get("body", b"")
        received += len(piece)
        if received > limit:
            raise too_large("the body", None, limit, do=do)
        if piece:
            yield piece
        if not message.get("more_body", False):
            return


def _too_slow(received: int, waited: float, limits: HttpLimits) -> HttpProblem:
    return HttpProblem(
        408,
        "BODY_TOO_SLOW",
        f"{received} bytes of the body came in {waited:.0f} s, the limit is {limits.body_bytes_per_s} bytes a second: "
        f"send it faster, or in smaller requests ({option_of('body_bytes_per_s')})",
        value=received,
        limit=limits.body_bytes_per_s,
        do="send it faster, or in smaller requests",
    )


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
    """Return the result of `work`; cancel it and raise ClientGone if the client disconnects. The body must have been
    read.
    """

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
