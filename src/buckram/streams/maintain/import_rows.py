"""Rows of a source, read and parsed by threads before they are used.

Arrow parses without holding Python's lock, so blocks of lines are parsed on several processors. Rows come in the order
of the source. Not here: reading and parsing (`streams/maintain/import_source_rows.py`), writing the rows (`maintain/imports.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

    from buckram.streams.maintain.import_source_rows import Step

T = TypeVar("T")
_AHEAD = 2
"""The number of steps that threads work at, or have done, while the rows of the one before are used."""


class RowsAhead:
    """The rows of the steps that a source consists of. Use `async with`; at its end no thread is at work any more."""

    def __init__(self, steps: Generator[Step, None, None]) -> None:
        self._steps = steps
        self._coming: asyncio.Future[Step | None] | None = None
        self._ahead: deque[asyncio.Future[pa.RecordBatch | None]] = deque()
        self._ended = False

    async def next(self) -> pa.RecordBatch | None:
        """Return the next rows, None after the last ones. Raises what the steps raise."""
        while True:
            while not self._ended and len(self._ahead) <= _AHEAD:
                await self._begin()
            if not self._ahead:
                return None
            found = await self._ahead[0]
            self._ahead.popleft()
            if found is not None:
                return found

    async def _begin(self) -> None:
        """Begin the next step, and read the one after it."""
        step = await (self._coming or self._read())
        if step is None:
            self._coming, self._ended = None, True
            return
        self._ahead.append(_in_thread(step))
        self._coming = None
        self._read()

    def _read(self) -> asyncio.Future[Step | None]:
        self._coming = _in_thread(lambda: next(self._steps, None))
        return self._coming

    async def __aenter__(self) -> RowsAhead:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        calls: list[asyncio.Future[Step | None] | asyncio.Future[pa.RecordBatch | None]] = [*self._ahead]
        if self._coming is not None:
            calls.append(self._coming)
        if calls:
            await asyncio.wait(calls)  # They read from a file that is closed now.
        for call in calls:
            if not call.cancelled():
                call.exception()  # It was reported, or another error was.
        self._steps.close()


def _in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(None, call)


__all__ = ["RowsAhead"]
