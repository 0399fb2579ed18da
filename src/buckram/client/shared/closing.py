"""The end of writers, of ledgers and streams alike: a close that is asked for more than once, and the end of `with`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from buckram.errors import BuckramError, HandleClosed

Close = Callable[[bool], Awaitable[None]]
"""Closes a writer; the flag says whether to wait for what is not yet acknowledged."""
CloseBlocking = Callable[[bool], None]
"""As `Close`, for the client without async."""
Dispose = Callable[[], Awaitable[None]]
"""Ends a writer's tasks and timers, closed or not."""


async def wait_closed(closing: asyncio.Task[BuckramError | None], what: str) -> None:
    """Wait for a close that goes on when this wait is cancelled; raises the error that it gives every caller."""
    try:
        error = await asyncio.shield(closing)
    except asyncio.CancelledError:
        if closing.cancelled():  # by abandon, not the caller
            raise HandleClosed(f"{what}: the writer was abandoned while it closed") from None
        raise
    if error is not None:
        raise error.with_traceback(None)


async def close_on_exit(
    close: Close,
    dispose: Dispose,
    error: BaseException | None,
    what: str,
) -> None:
    """Close a writer at the end of `async with` with `error` from its body: wait for it, unless cancelled, then let go
    of everything."""
    try:
        await close(not isinstance(error, asyncio.CancelledError))
    except BuckramError as failure:
        _note(failure, error, what)
    finally:
        await dispose()


def close_on_exit_blocking(close: CloseBlocking, error: BaseException | None, what: str) -> None:
    """Close at the end of a `with`, and wait unless Ctrl-C (KeyboardInterrupt) ended the body."""
    try:
        close(not isinstance(error, KeyboardInterrupt))
    except BuckramError as failure:
        _note(failure, error, what)


def _note(failure: BuckramError, error: BaseException | None, what: str) -> None:
    """Prefer the body's exception; attach the close error as a note."""
    if error is None:
        raise failure
    error.add_note(f"closing {what} failed too: {failure}")
