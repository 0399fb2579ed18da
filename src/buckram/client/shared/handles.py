"""The result of connect(), create(), open(): to be awaited, or entered with `async with`. `with` gets a hint."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar


class NotCopied:
    """Base of what holds connections: pickling it, or copying it, tells what to pass instead."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} has connections of this process and cannot be pickled or copied: pass the URI of "
            "the cluster, and connect there (buckram.connect(uri) or buckram.sync.connect(uri))"
        )


class NotBlocking(NotCopied):
    """Base of the handles of the async client: `with` tells what to write instead."""

    def __enter__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} is async: use `async with` instead of `with`, or the client without async, "
            "buckram.sync.connect()"
        )

    def __exit__(self, *error: object) -> None:
        """Do nothing: Python looks this method up before it enters."""


class NotAsync(NotCopied):
    """Base of the handles of the client without async: `async with` tells what to write instead."""

    async def __aenter__(self) -> NoReturn:
        raise TypeError(
            f"sync.{type(self).__name__} is not async: use `with` instead of "
            "`async with`, or the async client, buckram.connect()"
        )

    async def __aexit__(self, *error: object) -> None:
        """Do nothing: Python looks this method up before it enters."""


class _Handle(Protocol):
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


H = TypeVar("H", bound=_Handle)


class Opening(NotCopied, Generic[H]):
    """`handle = await opening` (close it yourself) or `async with opening as handle`. Nothing happens before that."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, H]], what: str) -> None:
        self._start, self._what = start, what
        self._handle: H | None = None

    def __repr__(self) -> str:
        return f"<{self._what}: not yet opened, await it or use `async with`>"

    def __enter__(self) -> NoReturn:
        raise TypeError(
            f"{self._what} is async: use `async with` instead of `with`, or the client without async, "
            "buckram.sync.connect()"
        )

    def __exit__(self, *error: object) -> None:
        """Do nothing: Python looks this method up before it enters."""

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
