"""The in-process cluster for tests that are not async: on a loop of its own in a thread, driven by plain calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from buckram.testing.in_process import Cluster, cluster

T = TypeVar("T")


class ThreadedCluster:
    """`with ThreadedCluster(bookies=3) as c`: c.uri works in every thread and process of this machine.

    `metadata`: the URI of a running store to use instead of a file of its own.
    """

    def __init__(self, bookies: int = 3, metadata: str = "sqlite") -> None:
        self._bookies, self._metadata = bookies, metadata
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._cluster: Cluster | None = None
        self._leave: asyncio.Event | None = None
        self._ended: BaseException | None = None

    @property
    def uri(self) -> str:
        """What connect() takes."""
        return self._running.uri

    @property
    def bookies(self) -> list[str]:
        """Ids by number."""
        return self._running.bookies

    def kill(self, number: int) -> None:
        """Cut a bookie off at once."""
        self._call(self._running.kill(number))

    def stop(self, number: int) -> None:
        """Stop a bookie in order."""
        self._call(self._running.stop(number))

    def pause(self, number: int) -> None:
        """A bookie that hangs; resume ends it."""
        self._call(self._running.pause(number))

    def resume(self, number: int) -> None:
        """After pause: what arrived meanwhile is handled, in order."""
        self._call(self._running.resume(number))

    def restart(self, number: int) -> None:
        """Start a bookie again on its data."""
        self._call(self._running.restart(number))

    def add(self) -> int:
        """One more bookie; its number."""
        return self._call(self._running.add())

    def __enter__(self) -> ThreadedCluster:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="buckram-cluster", daemon=True)
        self._thread.start()
        ready.wait()
        if self._ended is not None:
            self._thread.join()
            raise self._ended
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._leave is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join()
        if self._ended is not None and error is None:
            raise self._ended

    @property
    def _running(self) -> Cluster:
        assert self._cluster is not None, "enter it first: with ThreadedCluster() as c"
        return self._cluster

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._main(ready))
        except BaseException as error:  # handed to the thread that waits for it
            self._ended = error
        finally:
            ready.set()

    async def _main(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._leave = asyncio.Event()
        async with cluster(self._bookies, metadata=self._metadata) as self._cluster:
            ready.set()
            await self._leave.wait()
