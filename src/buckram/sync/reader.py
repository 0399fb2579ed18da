"""The blocking faces of Reader and Tail: entries cross from the loop in chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import TypeVar

from buckram.client.read.reader import Reader as _Reader
from buckram.client.read.tail import Tail as _Tail
from buckram.client.shared.handles import NotAsync, NotCopied
from buckram.sync.thread import LoopThread, each
from buckram.types import Entry, EntryId, LedgerMetadata

T = TypeVar("T")


class Reader(NotAsync):
    """See buckram.Reader. Safe to use from several threads."""

    def __init__(self, thread: LoopThread, reader: _Reader) -> None:
        self._thread = thread
        self._reader = reader
        self.ledger_id = reader.ledger_id
        """The ledger's id."""

    def __repr__(self) -> str:
        return repr(self._reader).replace("<", "<sync.", 1)

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as last seen."""
        return self._reader.metadata

    @property
    def last_confirmed(self) -> EntryId:
        """The last entry known to be readable; -1 if none."""
        return self._reader.last_confirmed

    @property
    def length(self) -> int | None:
        """Payload bytes of a closed ledger; None while it is open."""
        return self._reader.length

    def read_last_confirmed(self) -> EntryId:
        """Look up the last confirmed entry now."""
        return self._thread.run(self._reader.read_last_confirmed)

    def read(self, first: EntryId, last: EntryId) -> list[Entry]:
        """Return the entries first..last, both inclusive."""
        return self._thread.run(lambda: self._reader.read(first, last))

    def read_payloads(self, first: EntryId, last: EntryId) -> list[bytes]:
        """Return the payloads of first..last, the fastest way to read in bulk."""
        return self._thread.run(lambda: self._reader.read_payloads(first, last))

    def get(self, entry: EntryId) -> Entry:
        """Return one entry."""
        return self._thread.run(lambda: self._reader.get(entry))

    def read_unconfirmed(self, first: EntryId, last: EntryId) -> list[Entry]:
        """Entries that recovery may still cut off."""
        return self._thread.run(lambda: self._reader.read_unconfirmed(first, last))

    def chunks(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[list[Entry]]:
        """Iterate over first..last in lists, reading ahead."""
        return self._each(lambda: self._reader.chunks(first, last))

    def payload_chunks(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[list[bytes]]:
        """Iterate over lists of payloads: the fastest way through much data, in the memory of a few chunks."""
        return self._each(lambda: self._reader.payload_chunks(first, last))

    def _each(self, chunks: Callable[[], AsyncIterator[list[T]]]) -> Iterator[list[T]]:
        self._thread.check()
        source = chunks()

        async def step() -> list[T] | None:
            return await anext(source, None)

        return each(self._thread, step, source)

    def entries(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[Entry]:
        """Iterate over first..last (default: up to the last confirmed entry), reading ahead."""
        for chunk in self.chunks(first, last):
            yield from chunk

    def tail(self, start: EntryId = 0) -> Tail:
        """`for entry in reader.tail()`: entries as they are confirmed, until the ledger is closed."""

        async def begin() -> _Tail:
            return self._reader.tail(start)

        return Tail(self._thread, self._thread.run(begin))

    def close(self) -> None:
        """End all reads and tails of this handle. In a forked child, or after the client's close: nothing."""
        if self._thread.usable:
            self._thread.run(self._reader.close)

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
