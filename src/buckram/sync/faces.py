"""Base of the blocking face of every async handle: the handle, its loop's thread, and iterators over its items."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Generic, TypeVar

from buckram.sync.thread import LoopThread, each, flatten

PAGE = 1000
H = TypeVar("H")
T = TypeVar("T")


class Face(Generic[H]):
    """Base of the generated calls."""

    def __init__(self, thread: LoopThread, handle: H) -> None:
        self._thread, self._handle = thread, handle


class NamedFace(Face[H]):
    """A face that is shown as its handle is."""

    def __repr__(self) -> str:
        return repr(self._handle).replace("<", "<sync.", 1)


def items(thread: LoopThread, make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
    """Iterate over what `make` gives, an item at a time."""
    thread.check()
    source = make()

    async def step() -> T | None:
        return await anext(source, None)

    return each(thread, step, source)


def pages(thread: LoopThread, make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
    """Iterate over what `make` gives, which is fetched a page at a time."""
    thread.check()
    source = make()

    async def page() -> Sequence[T] | None:
        found: list[T] = []
        async for item in source:
            found.append(item)
            if len(found) == PAGE:
                break
        return found or None

    return flatten(thread, page, source)
