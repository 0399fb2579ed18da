"""The result of connect(), create(), open(): to be awaited, or entered with `async with`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar


class _Handle(Protocol):
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


H = TypeVar("H", bound=_Handle)


class Opening(Generic[H]):
    """`handle = await opening` (close it yourself) or `async with opening as handle`. Nothing happens before that."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, H]]) -> None:
        self._start = start
        self._handle: H | None = None

    def __await__(self) -> Generator[Any, Any, H]:
        return self._start().__await__()

    async def __aenter__(self) -> H:
        self._handle = await self._start()
        return await self._handle.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._handle is not None
        await self._handle.__aexit__(kind, error, trace)
