"""A second thread with its own event loop beside the bookie's, and its way to call into the bookie.

HTTP is served there, so that a page that takes long, or a metadata store that does, never delays an add.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

from buckram.runtime.process.process_setup import loop_factory

B = TypeVar("B")
T = TypeVar("T")
STOP_S = 5.0


class OtherLoop(Generic[B]):
    """Asks an object that belongs to another event loop, from the loop of this thread."""

    def __init__(self, subject: B, loop: asyncio.AbstractEventLoop) -> None:
        self._subject, self._loop = subject, loop

    async def ask(self, question: Callable[[B], T]) -> T:
        """Call `question` on the object's loop, between two of its turns; return or raise what it does."""

        async def asked() -> T:
            return question(self._subject)

        return await self._there(asked())

    async def wait(self, question: Callable[[B], Awaitable[T]]) -> T:
        """Run what `question` returns on the object's loop to its end. Cancelled with the caller."""

        async def asked() -> T:
            return await question(self._subject)

        return await self._there(asked())

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        future: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.wrap_future(future)


class Serving(Protocol):
    """Runs in the thread: calls `started` once it serves, with what `HttpThread.start` shall return."""

    def __call__(self, started: Callable[[Any], None], /) -> Awaitable[None]: ...


class HttpThread:
    """A thread with an event loop that runs `serving` until it is stopped."""

    def __init__(self, name: str, serving: Serving, environment: Mapping[str, str]) -> None:
        self._serving, self._environment = serving, environment
        self._started: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    async def start(self) -> Any:
        """Start the thread and wait until it serves. Raises what kept it from that."""
        self._thread.start()
        return await asyncio.wrap_future(self._started)

    async def stop(self) -> None:
        """Cancel what runs there and wait for its end, while the loop of the caller goes on."""
        if self._loop is None or self._task is None:
            return
        if self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._task.cancel)
            except RuntimeError:  # its loop has ended by itself
                return
            await asyncio.to_thread(self._thread.join, STOP_S)

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory(self._environment)) as runner:
                runner.run(self._run())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _run(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        await self._serving(self._started.set_result)


@asynccontextmanager
async def beside(name: str, serving: Serving, environment: Mapping[str, str]) -> AsyncIterator[Any]:
    """Run `serving` in a thread for as long as the context lasts: `async with beside(...) as found:`."""
    thread = HttpThread(name, serving, environment)
    try:
        yield await thread.start()
    finally:
        await thread.stop()
