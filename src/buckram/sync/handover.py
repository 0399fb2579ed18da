"""Appends that are not waited for, handed from any thread to the loop: in order, many at once, within bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from buckram.config import ClientConfig
from buckram.errors import BuckramError, BufferFull, HandleClosed
from buckram.runtime.process.tasks import TaskScope
from buckram.sync.thread import LoopThread

T = TypeVar("T")


class AsyncAppends(Protocol[T]):
    """The async handle behind a blocking one. Both are called on the loop, with what `Handover.put` got."""

    def append_nowait(self, *payload: Any, **extras: Any) -> asyncio.Future[T]:
        """Append at once. Raises BufferFull if there is no room, another BuckramError if it is refused for good."""
        ...

    def append(self, *payload: Any, **extras: Any) -> Awaitable[T]:
        """Append as soon as there is room."""
        ...


class Handover(Generic[T]):
    """The appends of one handle: from any thread, in their order, to `writer` on the loop."""

    def __init__(
        self,
        thread: LoopThread,
        scope: TaskScope,
        config: ClientConfig,
        what: str,
        writer: AsyncAppends[T],
    ) -> None:
        self._thread, self._scope, self._what, self._writer = thread, scope, what, writer
        self._limit_bytes, self._limit_count = config.max_pending_bytes, config.max_pending_entries
        self._lock = threading.Lock()
        self._queue: list[tuple[int, Any, dict[str, Any], Future[T]]] = []
        self._pending_bytes = self._pending_count = 0
        self._rejected: BuckramError | None = None

    def put(self, size: int, payload: Any, **extras: Any) -> Future[T]:
        """`size` in bytes. BufferFull at the limit of bytes or appends. The future cannot be cancelled."""
        self._thread.check()
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            pending = self._pending_bytes
            if self._pending_count and (pending + size > self._limit_bytes or self._pending_count >= self._limit_count):
                raise BufferFull(pending, self._limit_bytes)
            self._pending_bytes += size
            self._pending_count += 1
            self._queue.append((size, payload, extras, future))
            wake = len(self._queue) == 1
        if wake:
            self._thread.loop.call_soon_threadsafe(self._drain)
        return future

    def raise_rejected(self) -> None:
        """Raise the error of the first refused append, once."""
        rejected, self._rejected = self._rejected, None
        if rejected is not None:
            raise rejected

    def _drain(self) -> None:
        """Append the records queued since the last call, in order. Runs on the loop."""
        with self._lock:
            queue, self._queue = self._queue, []
        for size, payload, extras, future in queue:
            done = partial(self._done, size, future)
            try:
                self._writer.append_nowait(payload, **extras).add_done_callback(done)
            except BufferFull:
                # Others append on this handle, too. append() waits in call order, and so do those behind it.
                task = self._scope.spawn(_outcome(self._writer.append(payload, **extras)), "append")
                task.add_done_callback(partial(self._waited, done))
            except BuckramError as error:
                self._rejected = self._rejected or error
                self._finish(size, future, error=error)

    def _waited(self, done: Callable[[asyncio.Future[T]], None], task: asyncio.Task[T | BuckramError]) -> None:
        future: asyncio.Future[T] = self._thread.loop.create_future()
        if task.cancelled():
            future.cancel()
        else:
            result = task.result()
            if isinstance(result, BuckramError):
                future.set_exception(result)
            else:
                future.set_result(result)
        done(future)

    def _done(self, size: int, future: Future[T], appended: asyncio.Future[T]) -> None:
        if appended.cancelled():
            closed = HandleClosed(f"{self._what}: the client was closed before this was acknowledged")
            self._finish(size, future, error=closed)
        elif (error := appended.exception()) is not None:
            self._finish(size, future, error=error)
        else:
            self._finish(size, future, result=appended.result())

    def _finish(
        self, size: int, future: Future[T], *, result: T | None = None, error: BaseException | None = None
    ) -> None:
        with self._lock:
            self._pending_bytes -= size
            self._pending_count -= 1
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # T itself may be optional


async def _outcome(append: Awaitable[T]) -> T | BuckramError:
    try:
        return await append
    except BuckramError as error:
        return error
