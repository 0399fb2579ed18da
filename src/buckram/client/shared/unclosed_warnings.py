"""Writers that a program does not close: they are closed when the interpreter ends, best effort and with a warning.

Else the last acknowledged entries would be readable only when somebody recovers the ledger; of a stream, when the next
writer or a janitor seals the segment. A writer whose loop runs in a thread (the blocking client) is closed there. The
loop of one that ended with asyncio.run is gone: then a client of its own does what recovery, or the next writer, does.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import time
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import TimeoutError as WaitTimeout
from dataclasses import dataclass
from typing import Any, Protocol

from buckram.errors import BuckramError

_EXIT_WAIT_S = 5.0
"""Time to close all writers together, seconds."""


SealWithoutWriter = Callable[[], Awaitable[None]]
"""Seals what a writer has left open, on another loop and with a client of its own."""


class Closable(Protocol):
    """A writer of the client without threads: of a ledger or of a stream."""

    def close(self) -> Coroutine[Any, Any, None]:
        """Flush and seal."""
        ...


@dataclass(frozen=True, slots=True)
class _Open:
    process: int
    what: str
    later: str
    loop: asyncio.AbstractEventLoop
    writer: weakref.ref[Closable]
    seal: SealWithoutWriter


_open: dict[Hashable, _Open] = {}


def register_unclosed(key: Hashable, writer: Closable, seal: SealWithoutWriter, *, what: str, later: str) -> None:
    """Register a writer to be closed at the end of the interpreter unless `deregister_unclosed` comes first.

    `seal` closes it without the writer, on another loop. For the warning: `what` it writes, and who ends it `later` if
    that fails.
    """
    _open[key] = _Open(os.getpid(), what, later, asyncio.get_running_loop(), weakref.ref(writer), seal)


def deregister_unclosed(key: Hashable) -> None:
    """Forget a writer that was closed, abandoned or lost."""
    _open.pop(key, None)


def close_all() -> None:
    """Close all writers that are still registered, at the end of the interpreter."""
    deadline = time.monotonic() + _EXIT_WAIT_S
    mine = [left for left in _open.values() if left.process == os.getpid()]
    _open.clear()
    for left in mine:
        warnings.warn(
            f"the writer of {left.what} was not closed: use `async with`, `with` or close(). It is closed now "
            f"if possible, otherwise by {left.later}; entries that were not acknowledged may be lost",
            ResourceWarning,
            stacklevel=2,
        )
        wait_s, writer = deadline - time.monotonic(), left.writer()
        if wait_s <= 0:
            continue
        try:
            if writer is not None and left.loop.is_running():
                asyncio.run_coroutine_threadsafe(writer.close(), left.loop).result(wait_s)
            else:
                asyncio.run(_within(left, wait_s))
        except (BuckramError, OSError, RuntimeError, TimeoutError, WaitTimeout):
            continue


async def _within(left: _Open, wait_s: float) -> None:
    async with asyncio.timeout(wait_s):
        await left.seal()


atexit.register(close_all)
