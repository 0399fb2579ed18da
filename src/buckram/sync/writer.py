"""The blocking face of a Writer: what is appended without waiting crosses to the loop in batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from functools import partial
from types import TracebackType

from buckram.client.writer import Writer as _Writer
from buckram.config import ClientConfig
from buckram.errors import BuckramError, BufferFull, HandleClosed
from buckram.net.tasks import TaskScope
from buckram.sync.thread import LoopThread
from buckram.types import Buffer, EntryId, LedgerMetadata


class Writer:
    """See buckram.Writer. Appends of several threads are mixed in the order in which they arrive."""

    def __init__(self, thread: LoopThread, writer: _Writer, scope: TaskScope, config: ClientConfig) -> None:
        self._thread = thread
        self._writer = writer
        self._scope = scope
        self._limit_bytes, self._limit_entries = config.max_pending_bytes, config.max_pending_entries
        self._lock = threading.Lock()
        self._queue: list[tuple[Buffer, EntryId | None, Future[EntryId]]] = []
        self._pending_bytes = self._pending_entries = 0
        self._rejected: BuckramError | None = None
        self.ledger_id = writer.ledger_id

    @property
    def last_confirmed(self) -> EntryId:
        return self._writer.last_confirmed

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    @property
    def degraded(self) -> bool:
        return self._writer.degraded

    @property
    def degraded_reason(self) -> str:
        return self._writer.degraded_reason

    def append(self, payload: Buffer, *, entry_id: EntryId | None = None) -> EntryId:
        """Append one entry and wait until it is acknowledged. For speed use append_many or append_nowait."""
        return self._thread.run(lambda: self._writer.append(payload, entry_id=entry_id))

    def append_many(self, payloads: Iterable[Buffer]) -> range:
        """Append entries in a row and wait until all are acknowledged."""
        bodies = list(payloads) if not isinstance(payloads, bytes | bytearray | memoryview | str) else payloads
        return self._thread.run(lambda: self._writer.append_many(bodies))

    def append_nowait(self, payload: Buffer, *, entry_id: EntryId | None = None) -> Future[EntryId]:
        """Hand over one entry; its future is done when it is acknowledged. BufferFull at the limit of bytes or entries.

        The future cannot be cancelled and may be dropped: flush and close raise the first append that failed.
        Its callbacks run in the client's thread and must not block.
        """
        self._thread.check()
        if not isinstance(payload, bytes):
            payload = bytes(payload)
        future: Future[EntryId] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            pending = self._pending_bytes
            if self._pending_entries and (
                pending + len(payload) > self._limit_bytes or self._pending_entries >= self._limit_entries
            ):
                raise BufferFull(pending, self._limit_bytes)
            self._pending_bytes += len(payload)
            self._pending_entries += 1
            self._queue.append((payload, entry_id, future))
            wake = len(self._queue) == 1
        if wake:
            self._thread.loop.call_soon_threadsafe(self._drain)
        return future

    def _drain(self) -> None:
        """On the loop: what came since the last time, in order."""
        with self._lock:
            queue, self._queue = self._queue, []
        for payload, entry_id, future in queue:
            done = partial(self._done, len(payload), future)
            try:
                self._writer.append_nowait(payload, entry_id=entry_id).add_done_callback(done)
            except BufferFull:
                # Others append on this handle, too. append() waits in call order, and so do those behind it.
                task = self._scope.spawn(_outcome(self._writer.append(payload, entry_id=entry_id)), "append")
                task.add_done_callback(partial(self._waited, done))
            except BuckramError as error:
                self._rejected = self._rejected or error
                self._finish(len(payload), future, None, error)

    def _waited(
        self, done: Callable[[asyncio.Future[EntryId]], None], task: asyncio.Task[EntryId | BuckramError]
    ) -> None:
        future: asyncio.Future[EntryId] = self._thread.loop.create_future()
        if task.cancelled():
            future.cancel()
        else:
            result = task.result()
            if isinstance(result, BuckramError):
                future.set_exception(result)
            else:
                future.set_result(result)
        done(future)

    def _done(self, size: int, future: Future[EntryId], appended: asyncio.Future[EntryId]) -> None:
        error: BaseException | None
        if appended.cancelled():
            error = HandleClosed(f"ledger {self.ledger_id}: the client was closed before this was acknowledged")
        else:
            error = appended.exception()
        self._finish(size, future, None if error is not None else appended.result(), error)

    def _finish(
        self, size: int, future: Future[EntryId], entry_id: EntryId | None, error: BaseException | None
    ) -> None:
        with self._lock:
            self._pending_bytes -= size
            self._pending_entries -= 1
        if error is not None:
            future.set_exception(error)
        else:
            assert entry_id is not None
            future.set_result(entry_id)

    def flush(self) -> None:
        """Wait until everything appended so far is acknowledged; raises the first append that failed."""
        self._thread.run(self._writer.flush)
        self._raise_rejected()

    def force(self) -> EntryId:
        """Deferred sync: make everything acknowledged so far durable."""
        return self._thread.run(self._writer.force)

    def close(self, *, wait: bool = True) -> None:
        """Flush and seal the ledger; raises the first append that failed."""

        async def close() -> None:
            try:
                await self._writer.close(wait=wait)
            finally:
                await self._scope.close()

        self._thread.run(close)
        self._raise_rejected()

    def _raise_rejected(self) -> None:
        rejected, self._rejected = self._rejected, None
        if rejected is not None:
            raise rejected

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.forked:
            return  # the parent's ledger: it is open there
        try:
            self.close(wait=not isinstance(error, KeyboardInterrupt))
        except BuckramError as failure:
            if error is None:
                raise
            error.add_note(f"closing ledger {self.ledger_id} failed too: {failure}")


async def _outcome(append: Awaitable[EntryId]) -> EntryId | BuckramError:
    try:
        return await append
    except BuckramError as error:
        return error
