"""Futures of appends and flushes that wait for the head of a writer, in id order. Decides nothing about the head."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from typing import Any

from buckram.types import EntryId

_Waiter = tuple[EntryId, Any, "asyncio.Future[Any]"]


class Completions:
    """Waiters ordered by the last entry they wait for. A future that its owner cancelled is passed over (S20)."""

    def __init__(self) -> None:
        self._queue: deque[_Waiter] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, last: EntryId, result: Any, future: asyncio.Future[Any]) -> None:
        """Resolve `future` with `result` once the head reaches `last`."""
        queue = self._queue
        if queue and queue[-1][0] > last:  # explicit ids come in any order
            queue.insert(bisect_right(queue, last, key=_last_of), (last, result, future))
        else:
            queue.append((last, result, future))

    def reached(self, head: EntryId) -> None:
        queue = self._queue
        while queue and queue[0][0] <= head:
            _, result, future = queue.popleft()
            if not future.done():
                future.set_result(result)

    def fail(self, error: BaseException) -> None:
        queue, self._queue = self._queue, deque()
        for _, _, future in queue:
            fail_future(future, error)


def fail_future(future: asyncio.Future[Any], error: BaseException) -> None:
    """Fail it, without the loop's complaint when nobody looks: flush and close report the first failure anyway."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def _last_of(waiter: _Waiter) -> EntryId:
    return waiter[0]
