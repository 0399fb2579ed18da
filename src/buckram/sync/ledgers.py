"""The blocking faces of Reader, Tail and Writer of ledgers.

Entries cross from the loop in chunks, and appends that do not wait cross to the loop in batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType

from buckram.client.read.reader import Reader as _Reader
from buckram.client.read.tail import Tail as _Tail
from buckram.client.shared.handles import NotAsync, NotCopied, close_on_exit_blocking
from buckram.client.write.writer import Writer as _Writer
from buckram.config import ClientConfig
from buckram.runtime.process.tasks import TaskScope
from buckram.sync.calls.ledgers import ReaderCalls, WriterCalls
from buckram.sync.handover import Handover
from buckram.sync.thread import LoopThread
from buckram.types import Buffer, Entry, EntryId


class Writer(WriterCalls, NotAsync):
    """See buckram.Writer. Appends of several threads are mixed in the order in which they arrive."""

    def __init__(self, thread: LoopThread, writer: _Writer, scope: TaskScope, config: ClientConfig) -> None:
        super().__init__(thread, writer)
        self._scope = scope
        self.ledger_id = writer.ledger_id
        """The ledger's id."""
        self._handover: Handover[EntryId] = Handover(thread, scope, config, f"ledger {writer.ledger_id}", writer)

    def append_many(self, payloads: Iterable[Buffer]) -> range:
        """Append entries in a row and wait until all are acknowledged."""
        bodies = list(payloads) if not isinstance(payloads, bytes | bytearray | memoryview | str) else payloads
        return self._thread.run(lambda: self._handle.append_many(bodies))

    def append_nowait(self, payload: Buffer, *, entry_id: EntryId | None = None) -> Future[EntryId]:
        """Hand over one entry; its future is done when it is acknowledged. BufferFull at the limit of bytes or entries.

        The future cannot be cancelled and may be dropped: flush and close raise the first append that failed.
        Its callbacks run in the client's thread and must not block.
        """
        body = payload if isinstance(payload, bytes) else bytes(payload)
        return self._handover.put(len(body), body, entry_id=entry_id)

    def flush(self) -> None:
        """Wait until everything appended so far is acknowledged; raises the first append that failed."""
        self._thread.run(self._handle.flush)
        self._handover.raise_rejected()

    def close(self, *, wait: bool = True) -> None:
        """Flush and seal the ledger; raises the first append that failed."""

        async def close() -> None:
            try:
                await self._handle.close(wait=wait)
            finally:
                await self._scope.close()

        self._thread.run(close)
        self._handover.raise_rejected()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.forked:
            return  # the parent's ledger: it is open there
        close_on_exit_blocking(lambda wait: self.close(wait=wait), error, f"ledger {self.ledger_id}")


class Reader(ReaderCalls, NotAsync):
    """See buckram.Reader. Safe to use from several threads."""

    def __init__(self, thread: LoopThread, reader: _Reader) -> None:
        super().__init__(thread, reader)
        self.ledger_id = reader.ledger_id
        """The ledger's id."""

    def entries(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[Entry]:
        """Iterate over first..last (default: up to the last confirmed entry), reading ahead."""
        for chunk in self.chunks(first, last):
            yield from chunk

    def tail(self, start: EntryId = 0) -> Tail:
        """`for entry in reader.tail()`: entries as they are confirmed, until the ledger is closed."""

        async def begin() -> _Tail:
            return self._handle.tail(start)

        return Tail(self._thread, self._thread.run(begin))

    def close(self) -> None:
        """End all reads and tails of this handle. In a forked child, or after the client's close: nothing."""
        if self._thread.usable:
            self._thread.run(self._handle.close)

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Tail(NotCopied):
    """See buckram.Tail. One tail belongs to one consumer."""

    def __init__(self, thread: LoopThread, tail: _Tail) -> None:
        self._thread = thread
        self._tail = tail
        self._fetched: Iterator[Entry] = iter(())

    def __iter__(self) -> Tail:
        return self

    def __next__(self) -> Entry:
        entry = next(self._fetched, None)
        if entry is None:
            chunk = self._thread.run(self._tail.next_chunk)
            if not chunk:
                raise StopIteration
            self._fetched = iter(chunk)
            entry = next(self._fetched)
        return entry

    def next_chunk(self, timeout_s: float | None = None) -> list[Entry]:
        """Return the next entries, as many as came together; empty at the end of the ledger. TimeoutError loses
        nothing."""
        return list(self._fetched) or self._thread.run(self._tail.next_chunk, timeout_s)

    def close(self) -> None:
        """End the tail early."""
        self._thread.run(self._tail.aclose)
