"""Handles of the client: the results of connect(), create() and open(), and the end of what they open.

A result is to be awaited, or entered with `async with`; a plain `with` gets a hint. Writers, of ledgers and streams
alike, may be closed more than once, and are closed at the end of their `with`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar

from buckram.errors import BuckramError, HandleClosed


class NotCopied:
    """Base of what holds connections: pickling it, or copying it, tells what to pass instead."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} has connections of this process and cannot be pickled or copied: pass the URI of "
            "the cluster, and connect there (buckram.connect(uri) or buckram.sync.connect(uri))"
        )


class NotBlocking(NotCopied):
    """Base of the handles of the async client: `with` tells what to write instead."""

    def __enter__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} is async: use `async with` instead of `with`, or the client without async, "
            "buckram.sync.connect()"
        )

    def __exit__(self, *error: object) -> None:
        """Do nothing: Python looks this method up before it enters."""


class NotAsync(NotCopied):
    """Base of the handles of the client without async: `async with` tells what to write instead."""

    async def __aenter__(self) -> NoReturn:
        raise TypeError(
            f"sync.{type(self).__name__} is not async: use `with` instead of "
            "`async with`, or the async client, buckram.connect()"
        )

    async def __aexit__(self, *error: object) -> None:
        """Do nothing: Python looks this method up before it enters."""


class _Handle(Protocol):
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


H = TypeVar("H", bound=_Handle)


class Opening(NotCopied, Generic[H]):
    """`handle = await opening` (close it yourself) or `async with opening as handle`. Nothing happens before that."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, H]], what: str) -> None:
        self._start, self._what = start, what
        self._handle: H | None = None

    def __repr__(self) -> str:
        return f"<{self._what}: not yet opened, await it or use `async with`>"

    def __enter__(self) -> NoReturn:
        raise TypeError(
            f"{self._what} is async: use `async with` instead of `with`, or the client without async, "
            "buckram.sync.connect()"
        )

    def __exit__(self, *error: object) -> None:
        """Do nothing: Python looks this method up before it enters."""

    def __await__(self) -> Generator[Any, Any, H]:
        return self._start().__await__()

    async def __aenter__(self) -> H:
        self._handle = await self._start()
        return await self._handle.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._handle is not None
        await self._handle.__aexit__(kind, error, trace)


# -- the end of a writer --------------------------------------------------------------------------------------

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
    error.add_note(f"closing {what} failed as well: {failure}")
