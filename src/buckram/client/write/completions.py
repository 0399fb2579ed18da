"""Futures of appends and flushes that wait for the head of a writer, in id order. Decides nothing about the head.

`AckCallback` stands in for a future where the waiting code can be called directly, without a turn of the loop.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any

from buckram.types import EntryId

OnAcked = Callable[[Any], None]
"""Called with the `result` that was given for an append, when it is acknowledged."""
OnFailed = Callable[[BaseException], None]
"""Called with the error of the writer, once for each append that was not acknowledged."""


class AckCallback:
    """Takes the place of a future for any number of appends.

    `acked(result)` is called at once. `failed(error)` is called in a later turn of the loop, because the writer that
    fails has not finished ending.
    """

    __slots__ = ("_acked", "_failed", "_loop")

    def __init__(self, acked: OnAcked, failed: OnFailed) -> None:
        self._acked, self._failed = acked, failed
        self._loop = asyncio.get_running_loop()

    def done(self) -> bool:
        return False

    def set_result(self, result: Any) -> None:
        try:
            self._acked(result)
        except Exception as bug:  # one listener's bug must not keep the answers from the others
            self._loop.call_exception_handler({"message": "handling an acknowledgement failed", "exception": bug})

    def set_exception(self, error: BaseException) -> None:
        self._loop.call_soon(self._failed, error)

    def exception(self) -> None:
        """Do nothing: a future would note here that its exception was retrieved."""


_Waiter = tuple[EntryId, Any, "asyncio.Future[Any] | AckCallback"]


class Completions:
    """Waiters ordered by the last entry they wait for. A future that its owner cancelled is passed over (S20)."""

    def __init__(self) -> None:
        self._queue: deque[_Waiter] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, last: EntryId, result: Any, future: asyncio.Future[Any] | AckCallback) -> None:
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


def fail_future(future: asyncio.Future[Any] | AckCallback, error: BaseException) -> None:
    """Fail a future without the loop's complaint if it is never awaited: flush and close report the first failure
    anyway."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def _last_of(waiter: _Waiter) -> EntryId:
    return waiter[0]
