"""Stream appends that wait for room, in the order of the calls, and how an append is cut into entries.

No append overtakes another, so offsets follow the order of the calls. Not here: whether there is room for records
(`Appender` in `write/appender.py`), and the queue of a single ledger's writer (in `client/write`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import Any, Protocol

from buckram.client.write.completions import fail_future
from buckram.core.streams.records.record_format import Columns
from buckram.errors import BuckramError

MAX_ENTRY_RECORDS = 8192
"""The limit bounds the memory that a batch's columns cost beyond the bytes of its records."""


class RecordCursor:
    """Consecutive records that are cut into entries one after the other. `done` counts the records already cut off."""

    __slots__ = ("columns", "done", "ends")

    def __init__(self, columns: Columns, sizes: list[int] | None) -> None:
        self.columns = columns
        self.ends = list(accumulate(sizes)) if sizes is not None else [columns.size] if columns.values else []
        """For each record, the bytes of all records up to and including it."""
        self.done = 0

    def skip(self, count: int) -> None:
        """Leave out the first `count` records because the stream already holds them."""
        if count:
            size = self.ends[count - 1]
            self.columns = self.columns.slice(count, len(self.columns), self.ends[-1] - size)
            self.ends = [end - size for end in self.ends[count:]]

    def next_part(self, most_bytes: int, *, whole: bool = False) -> tuple[int, int]:
        """Return the index after the next entry's last record, and the bytes of its records.

        An entry has at least one record. With `whole` it has all that are left, however many bytes they are.
        """
        before = self.ends[self.done - 1] if self.done else 0
        stop = len(self.ends)
        if not whole:
            fitting = bisect_right(self.ends, before + most_bytes, self.done)
            stop = min(max(fitting, self.done + 1), self.done + MAX_ENTRY_RECORDS)
        return stop, self.ends[stop - 1] - before

    def part(self, stop: int, size: int) -> Columns:
        """Return the records from `done` to before `stop`, which are `size` bytes."""
        if self.done == 0 and stop == len(self.ends):
            return self.columns
        return self.columns.slice(self.done, stop, size)


class PendingAppend(RecordCursor):
    """One call of append whose records have not all received offsets. A flush is one without records."""

    __slots__ = ("atomic", "begun", "expect", "first", "future", "many", "start")

    def __init__(
        self,
        columns: Columns,
        sizes: list[int] | None,
        future: asyncio.Future[Any],
        *,
        many: bool = False,
        atomic: bool = False,
        expect: int | None = None,
        start: int | None = None,
    ) -> None:
        super().__init__(columns, sizes)
        self.future, self.many, self.atomic, self.expect = future, many, atomic, expect
        self.start = start
        """The sequence that the producer may begin with if the stream has never seen it."""
        self.begun = False
        self.first = 0
        """The offset of the first record, once `begun`."""


class AppendConsumer(Protocol):
    """The part of a stream's writer that gives offsets to records (`Appender`)."""

    def accept(self, pending: PendingAppend) -> bool:
        """Give offsets to as many of its records as there is room for.

        Returns True when all have one and the future will be resolved with their acknowledgement.
        """
        ...


class AppendQueue:
    """The waiting appends. Each has a caller that waits for it, so the callers bound the length of the queue."""

    def __init__(self, consumer: AppendConsumer) -> None:
        self._consumer = consumer
        self.waiting: deque[PendingAppend] = deque()
        self._draining = False

    def put(self, pending: PendingAppend) -> None:
        """Append to the queue; the consumer accepts it at once if it is first and there is room."""
        self.waiting.append(pending)
        if len(self.waiting) == 1:
            self.drain()

    def drain(self) -> None:
        """Pass appends to the consumer for as long as it has room. Cancelled ones are dropped."""
        if self._draining:
            return  # The consumer made room while it accepted an append; the outer call's loop continues.
        self._draining = True
        waiting = self.waiting
        try:
            while waiting and (waiting[0].future.done() or self._consumer.accept(waiting[0])):
                if waiting:
                    waiting.popleft()
        finally:
            self._draining = False

    def fail(self, error: BuckramError) -> None:
        """Fail all waiting appends with `error`."""
        waiting = list(self.waiting)
        self.waiting.clear()
        for pending in waiting:
            fail_future(pending.future, error)
