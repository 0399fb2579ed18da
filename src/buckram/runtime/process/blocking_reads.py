"""Reading what blocks, such as a file or a pipe, beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

_AHEAD = 4
"""Maximum pieces that are read before they are requested."""


async def read_beside(read: Callable[[int], Any], size: int) -> AsyncGenerator[Any, None]:
    """Yield what `read(size)` returns until that is empty; its errors are raised here.

    A daemon thread of its own reads, because an executor's threads are waited for at the end of a program, and a
    terminal or a pipe may never give anything.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[Any] = asyncio.Queue()
    room, ended = threading.Semaphore(_AHEAD), threading.Event()

    def run() -> None:
        more = True
        while more:
            room.acquire()
            if ended.is_set():
                return
            try:
                piece = read(size)
                more = bool(piece)
            except BaseException as error:
                piece, more = error, False
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            except RuntimeError:
                return  # The loop is closed: nobody wants it any more.

    threading.Thread(target=run, name="buckram read", daemon=True).start()
    try:
        while piece := await pieces.get():
            if isinstance(piece, BaseException):
                raise piece
            yield piece
            room.release()
    finally:
        ended.set()
        room.release()
