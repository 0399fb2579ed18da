"""The blocking faces of Reader and Tail: entries cross from the loop in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from buckram.client.read.reader import Reader as _Reader
from buckram.client.read.tail import Tail as _Tail
from buckram.client.shared.handles import NotAsync, NotCopied
from buckram.sync.calls.ledgers import ReaderCalls
from buckram.sync.thread import LoopThread
from buckram.types import Entry, EntryId


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
