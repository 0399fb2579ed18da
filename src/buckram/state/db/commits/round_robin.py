"""Turns: a queue that serves callers in turn (round-robin), however many items each of them has.

Items of one caller keep their order. Not here: the work of a turn (`state/db/commits/write_queue.py`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class RoundRobin(Generic[T]):
    """Queue with a round-robin among callers: after a turn a caller comes after all others that wait."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, caller: str, item: T) -> None:
        """Append an item behind this caller's earlier ones."""
        queue = self._queues.get(caller)
        if queue is None:
            queue = self._queues[caller] = deque()
        queue.append(item)

    @property
    def first(self) -> T:
        """Return the item whose turn it is. Raises StopIteration if none waits."""
        return next(iter(self._queues.values()))[0]

    def take(self) -> T:
        """Remove and return the item whose turn it is; its caller comes after the others."""
        caller, queue = next(iter(self._queues.items()))
        item = queue.popleft()
        if queue:
            self._queues.move_to_end(caller)
        else:
            del self._queues[caller]
        return item

    def give_back(self, caller: str, item: T) -> None:
        """Put back an item that could not be done in its turn; it has the next one."""
        self._queues.setdefault(caller, deque()).appendleft(item)
        self._queues.move_to_end(caller, last=False)

    def oldest(self) -> Iterator[tuple[str, T]]:
        """Return the oldest item of each caller."""
        return ((caller, queue[0]) for caller, queue in self._queues.items())

    def drop_first(self, caller: str) -> T:
        """Remove and return the oldest item of this caller."""
        queue = self._queues[caller]
        item = queue.popleft()
        if not queue:
            del self._queues[caller]
        return item

    def drain(self) -> list[T]:
        """Remove and return all items."""
        items = [item for queue in self._queues.values() for item in queue]
        self._queues.clear()
        return items


__all__ = ["RoundRobin"]
