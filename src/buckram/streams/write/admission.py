"""Appends that wait for room, in call order: nobody overtakes, so offsets follow the order of the calls.

Whether there is room is the writer's to say (`AppendConsumer`); how an append is cut into entries is decided here.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import Any, Protocol

from buckram.client.write.completions import fail_future
from buckram.core.streams.record_format import Columns
from buckram.errors import BuckramError

MAX_ENTRY_RECORDS = 8192
"""Bounds what columns cost beyond the bytes that callers see."""


class RecordCursor:
    """Records in a row that are cut into entries: those from `done` on are left."""

    __slots__ = ("columns", "done", "ends")

    def __init__(self, columns: Columns, sizes: list[int] | None) -> None:
        self.columns = columns
        self.ends = list(accumulate(sizes)) if sizes is not None else [columns.size] if len(columns) else []
        """Bytes up to and with each record."""
        self.done = 0

    @property
    def left(self) -> int:
        return len(self.ends) - self.done

    def skip(self, count: int) -> None:
        """Leave out the first records: they are stored already."""
        if count:
            size = self.ends[count - 1]
            self.columns = self.columns.slice(count, len(self.columns), self.ends[-1] - size)
            self.ends = [end - size for end in self.ends[count:]]

    def next_part(self, most_bytes: int, *, whole: bool = False) -> tuple[int, int]:
        """Where the next entry's records stop, and their bytes: at least one record; all of them if `whole`."""
        before = self.ends[self.done - 1] if self.done else 0
        stop = len(self.ends)
        if not whole:
            fitting = bisect_right(self.ends, before + most_bytes, self.done)
            stop = min(max(fitting, self.done + 1), self.done + MAX_ENTRY_RECORDS)
        return stop, self.ends[stop - 1] - before

    def part(self, stop: int, size: int) -> Columns:
        if self.done == 0 and stop == len(self.ends):
            return self.columns
        return self.columns.slice(self.done, stop, size)


class PendingAppend(RecordCursor):
    """One append that is not wholly taken. A flush has no records."""

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
        """The first sequence of its producer, should the stream never have had that one."""
        self.begun = False
        self.first = 0
        """Offset of its first record, once begun."""


class AppendConsumer(Protocol):
    def take(self, ask: PendingAppend) -> bool:
        """Take as much as there is room for; True when all of it is taken and its future is on the way."""
        ...


class Admission:
    """The queue. Its length is bounded by the number of callers that wait."""

    def __init__(self, taker: AppendConsumer) -> None:
        self._taker = taker
        self.waiting: deque[PendingAppend] = deque()
        self._admitting = False

    def put(self, ask: PendingAppend) -> None:
        """Taken when it is its turn and there is room, maybe at once."""
        self.waiting.append(ask)
        if len(self.waiting) == 1:
            self.admit()

    def admit(self) -> None:
        """Room may have come. Those that were cancelled while they waited are left out."""
        if self._admitting:
            return  # taking made room itself: the loop below sees it
        self._admitting = True
        waiting = self.waiting
        try:
            while waiting and (waiting[0].future.done() or self._taker.take(waiting[0])):
                if waiting:
                    waiting.popleft()
        finally:
            self._admitting = False

    def fail(self, error: BuckramError) -> None:
        waiting = list(self.waiting)
        self.waiting.clear()
        for ask in waiting:
            fail_future(ask.future, error)
