"""The in-process cluster for tests that are not async: on an event loop of its own in a thread, with plain calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from buckram.testing.in_process import Cluster, cluster

T = TypeVar("T")


class ThreadedCluster:
    """A cluster in a thread: `with ThreadedCluster(bookies=3) as c`. `c.uri` works in every thread and process.

    `metadata` is "sqlite" for a new file, or the URI of a metadata store that runs.
    """

    def __init__(self, bookies: int = 3, metadata: str = "sqlite") -> None:
        self._bookies, self._metadata = bookies, metadata
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._cluster: Cluster | None = None
        self._stop_event: asyncio.Event | None = None
        self._error: BaseException | None = None

    @property
    def uri(self) -> str:
        """The URI for connect()."""
        return self._running.uri

    @property
    def bookies(self) -> list[str]:
        """The bookies' ids, by their numbers."""
        return self._running.bookies

    def kill(self, number: int) -> None:
        """Kill a bookie: its connections are reset, nothing more is answered, and its registration ends."""
        self._call(self._running.kill(number))

    def stop(self, number: int) -> None:
        """Stop a bookie in order, as SIGTERM does."""
        self._call(self._running.stop(number))

    def pause(self, number: int) -> None:
        """Make a bookie hang until `resume`."""
        self._call(self._running.pause(number))

    def resume(self, number: int) -> None:
        """End a pause; what has arrived meanwhile is handled, in order."""
        self._call(self._running.resume(number))

    def restart(self, number: int) -> None:
        """Start a bookie again on its data. If it runs, it is stopped in order first."""
        self._call(self._running.restart(number))

    def add(self) -> int:
        """Start one more bookie, and return its number."""
        return self._call(self._running.add())

    def __enter__(self) -> ThreadedCluster:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="buckram-cluster", daemon=True)
        self._thread.start()
        ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._stop_event is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop_event.set)
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

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
        except BaseException as error:  # it is raised in the thread that entered the cluster
            self._error = error
        finally:
            ready.set()

    async def _main(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop_event = asyncio.Event()
        async with cluster(self._bookies, metadata=self._metadata) as self._cluster:
            ready.set()
            await self._stop_event.wait()
