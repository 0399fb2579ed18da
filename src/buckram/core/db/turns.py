"""Turns: a queue in which callers have their turns one after the other, however much each of them asks for.

What one caller asks for keeps its order. Not here: what is done in a turn (`state/db/writer.py`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """What waits, by caller. Whoever had a turn comes after the others who wait."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, caller: str, item: T) -> None:
        """Let it wait behind what this caller has asked for before."""
        queue = self._queues.get(caller)
        if queue is None:
            queue = self._queues[caller] = deque()
        queue.append(item)

    @property
    def first(self) -> T:
        """Whose turn it is. Raises StopIteration if nobody waits."""
        return next(iter(self._queues.values()))[0]

    def take(self) -> T:
        """Whose turn it is; it waits no more, and its caller comes after the others."""
        caller, queue = next(iter(self._queues.items()))
        item = queue.popleft()
        if queue:
            self._queues.move_to_end(caller)
        else:
            del self._queues[caller]
        return item

    def give_back(self, caller: str, item: T) -> None:
        """It could not be done in its turn, and has the next one."""
        self._queues.setdefault(caller, deque()).appendleft(item)
        self._queues.move_to_end(caller, last=False)

    def oldest(self) -> Iterator[tuple[str, T]]:
        """For each caller what has waited longest."""
        return ((caller, queue[0]) for caller, queue in self._queues.items())

    def drop_first(self, caller: str) -> T:
        """What has waited longest of this caller waits no more."""
        queue = self._queues[caller]
        item = queue.popleft()
        if not queue:
            del self._queues[caller]
        return item

    def drain(self) -> list[T]:
        """Everything; nobody waits any more."""
        items = [item for queue in self._queues.values() for item in queue]
        self._queues.clear()
        return items


__all__ = ["Turns"]
