"""Shelf: many things of which few are open. One is opened when it is requested, and closed when it was idle.

A closed one costs nothing here. Not here: what the things are (`state/db/opening.py`,
`serve/gateway/streams/writers.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from buckram.errors import BuckramError, HandleClosed, InvalidArgument
from buckram.runtime.process.tasks import TaskScope

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Place(Generic[T]):
    opening: asyncio.Task[T | BuckramError]
    users: int = 0
    idle_since: float = 0.0

    @property
    def item(self) -> T | None:
        """Return the item of this place; None while it is not open."""
        opening = self.opening
        if not opening.done() or opening.cancelled() or opening.exception() is not None:
            return None
        found = opening.result()
        return None if isinstance(found, BuckramError) else found

    @property
    def failed(self) -> bool:
        """Return whether opening was cancelled, or ended with an error that is not Buckram's."""
        opening = self.opening
        return opening.done() and (opening.cancelled() or opening.exception() is not None)


class BorrowedHandle(Generic[T]):
    """Something that stays open until `give` is called. From `HandleCache.take`."""

    __slots__ = ("_give", "item")

    def __init__(self, item: T, give: Callable[[], None]) -> None:
        self.item = item
        self._give: Callable[[], None] | None = give

    def give(self) -> None:
        """Use it no more. Idempotent."""
        give, self._give = self._give, None
        if give is not None:
            give()


class HandleCache(Generic[T]):
    """Shelf of items: `async with shelf.use(name) as item`. At most `most_open` are open, unless more are in use at
    once."""

    def __init__(
        self,
        what: str,
        open_one: Callable[[str], Awaitable[T]],
        close_one: Callable[[T], Awaitable[object]],
        has_ended: Callable[[T], bool],
        *,
        idle_s: float,
        most_open: int,
        holder: Callable[[str], str] = lambda name: "",
    ) -> None:
        """`what` names the kind of items for people. An item that has ended by itself is opened anew at its next use.

        `holder` returns the owner of a name. When too many are open, those of the owner with the most are closed.
        """
        if not 0 < idle_s <= 86_400 or not 1 <= most_open <= 100_000:
            raise InvalidArgument(f"idle_s={idle_s!r}, most_open={most_open!r}: needs up to 86400, and 1 to 100000")
        self._what, self._open_one, self._close_item, self._has_ended = what, open_one, close_one, has_ended
        self._idle_s, self._most_open, self._holder = idle_s, most_open, holder
        self._loop = asyncio.get_running_loop()
        self._scope = TaskScope(what)
        self._places: OrderedDict[str, _Place[T]] = OrderedDict()
        """Places in the order of their last use."""
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def names(self) -> list[str]:
        """The names of those that are open."""
        return list(self._places)

    def opened(self) -> dict[str, T]:
        """Return the open items by name, without those that are being opened."""
        found = ((name, place.item) for name, place in self._places.items())
        return {name: item for name, item in found if item is not None}

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[T]:
        """Yield the item of this name, which stays open during the block. Raises the errors of opening it, and
        HandleClosed."""
        use = await self.take(name)
        try:
            yield use.item
        finally:
            use.give()

    async def take(self, name: str) -> BorrowedHandle[T]:
        """Take an item without a block: it stays in use until `give` of the returned value is called. Raises like
        `use`."""
        use = await self._taken(name)
        if not self._has_ended(use.item):
            return use
        use.give()  # It ended while nobody used it.
        return await self._taken(name)

    async def _taken(self, name: str) -> BorrowedHandle[T]:
        place = await self._take(name)
        try:
            item: T | BuckramError | None = place.item
            if item is None:
                item = await asyncio.shield(place.opening)
            if isinstance(item, BuckramError):
                self._forget(name, place)
                raise item.with_traceback(None)
        except BaseException:
            if place.failed:
                self._forget(name, place)  # whatever it was: the next use tries anew
            self._give(name, place)
            raise
        return BorrowedHandle(item, partial(self._give, name, place))

    def _give(self, name: str, place: _Place[T]) -> None:
        place.users -= 1
        item = place.item
        if item is not None and self._has_ended(item):
            self._retire(name, place)
        if place.users:
            return
        place.idle_since = self._loop.time()
        if len(self._places) > self._most_open:
            self._look()
        elif self._sweeping is None and not self._closed:
            self._sweeping = self._loop.call_later(self._idle_s, self._look)

    async def _take(self, name: str) -> _Place[T]:
        while self._closing and (closing := self._closing.get(name)) is not None:
            await asyncio.wait((closing,))
        if self._closed:
            raise HandleClosed(f"{self._what}: they were closed")
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = _Place(self._scope.spawn(self._opened(name), name))
        self._places.move_to_end(name)
        place.users += 1
        return place

    async def _opened(self, name: str) -> T | BuckramError:
        try:
            return await self._open_one(name)
        except BuckramError as error:
            return error

    def _forget(self, name: str, place: _Place[T]) -> None:
        if self._places.get(name) is place:
            del self._places[name]

    def _look(self) -> None:
        """Close items that are idle for long, and some if too many are open; schedule the next look for the time when
        one is due."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        if self._closed:
            return
        now = self._loop.time()
        first: float | None = None
        for name, place in list(self._places.items()):
            if not place.users and now - place.idle_since >= self._idle_s:
                self._retire(name, place)
        self._close_surplus(len(self._places) - self._most_open)
        for place in self._places.values():
            if not place.users and (first is None or place.idle_since < first):
                first = place.idle_since
        if first is not None:
            self._sweeping = self._loop.call_later(max(first + self._idle_s - now, 0.01), self._look)

    def _close_surplus(self, count: int) -> None:
        """Close `count` unused items: each time the least recently used one of the holder with the most open."""
        if count <= 0:
            return
        open_now = Counter(map(self._holder, self._places))
        idle: dict[str, deque[str]] = {}
        for name, place in self._places.items():
            if not place.users:
                idle.setdefault(self._holder(name), deque()).append(name)
        for _ in range(count):
            if not idle:
                return
            most = max(idle, key=lambda holder: open_now[holder])
            name = idle[most].popleft()
            if not idle[most]:
                del idle[most]
            open_now[most] -= 1
            self._retire(name, self._places[name])

    def _retire(self, name: str, place: _Place[T]) -> None:
        if self._places.get(name) is place:
            del self._places[name]
            self._closing[name] = self._scope.spawn(self._close_one(name, place), f"close {name}")

    async def _close_one(self, name: str, place: _Place[T]) -> None:
        try:
            item = await place.opening
            if not isinstance(item, BuckramError):
                with suppress(BuckramError):
                    await self._close_item(item)
        finally:
            self._closing.pop(name, None)

    async def close(self) -> None:
        """Close all of them. Idempotent."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for name, place in list(self._places.items()):
            self._retire(name, place)
        if closing := list(self._closing.values()):
            await asyncio.wait(closing)
        await self._scope.close()
