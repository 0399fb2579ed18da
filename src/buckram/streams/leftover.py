"""Writers that a program does not close: they are closed when the interpreter ends, best effort and with a warning.

Else the last acknowledged records would be readable only when the next writer or a janitor seals the segment. A writer
whose loop runs in a thread (the blocking client) is closed there. The loop of one that ended with asyncio.run is gone:
then its segment is sealed by a client of its own, as the next writer would do it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import time
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import TimeoutError as WaitTimeout
from dataclasses import dataclass
from typing import Any, Protocol

from buckram.errors import BuckramError

_EXIT_WAIT_S = 5.0
"""For all writers together."""


class Closable(Protocol):
    stream: str

    def close(self) -> Coroutine[Any, Any, None]: ...


@dataclass(frozen=True, slots=True)
class _Open:
    process: int
    stream: str
    loop: asyncio.AbstractEventLoop
    writer: weakref.ref[Closable]
    seal: Callable[[], Awaitable[None]]


_open: dict[str, _Open] = {}
"""By nonce."""


def opened(nonce: str, writer: Closable, seal: Callable[[], Awaitable[None]]) -> None:
    """To be closed at the end unless `gone` comes first. `seal` does it without the writer, on another loop."""
    _open[nonce] = _Open(os.getpid(), writer.stream, asyncio.get_running_loop(), weakref.ref(writer), seal)


def gone(nonce: str) -> None:
    """It was closed, abandoned or lost."""
    _open.pop(nonce, None)


def close_all() -> None:
    """What is done at the end of the interpreter."""
    deadline = time.monotonic() + _EXIT_WAIT_S
    mine = [left for left in _open.values() if left.process == os.getpid()]
    _open.clear()
    for left in mine:
        warnings.warn(
            f"the writer of stream {left.stream} was not closed: use `async with`, `with` or close(). Its segment is "
            "sealed now if that works, else by the next writer or a janitor; what was not acknowledged may be lost",
            ResourceWarning, stacklevel=2,
        )  # fmt: skip
        wait_s, writer = deadline - time.monotonic(), left.writer()
        if wait_s <= 0:
            continue
        try:
            if writer is not None and left.loop.is_running():
                asyncio.run_coroutine_threadsafe(writer.close(), left.loop).result(wait_s)
            else:
                asyncio.run(_within(left, wait_s))
        except (BuckramError, OSError, RuntimeError, TimeoutError, WaitTimeout):
            continue  # the next writer or a janitor does it


async def _within(left: _Open, wait_s: float) -> None:
    async with asyncio.timeout(wait_s):
        await left.seal()


atexit.register(close_all)

__all__ = ["close_all", "gone", "opened"]
