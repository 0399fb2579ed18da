"""The clients of Spark's processes. Spark's workers are forked and reused, and end without running exit hooks.

Two kinds: a client of the cluster (planning, cursors, writing; it has a metadata session), and one that reads ledgers
of which everything is known (executors; it asks the metadata store only when something went wrong).
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from buckram.errors import BuckramError, MetadataUnavailable
from buckram.net.allocator import keep_freed_memory
from buckram.types import BookieInfo, BookieSet, History, LedgerId, Versioned

if TYPE_CHECKING:
    from buckram import sync
    from buckram.client.client import Client
    from buckram.seams import KeyStore, MetadataStore, Notify
    from buckram.sync.thread import LoopThread

T = TypeVar("T")


class Connection(NamedTuple):
    """A client of the cluster on a loop in a thread of its own."""

    thread: LoopThread
    client: Client
    blocking: sync.Client

    def run(self, make: Callable[[Client], Awaitable[T]]) -> T:
        """Wait for `await make(client)`, done on the loop."""
        return self.thread.run(lambda: make(self.client))


_connections: dict[tuple[int, str], Connection] = {}


def connection(uri: str) -> Connection:
    """One a process and cluster."""
    from buckram import sync
    from buckram.client.client import client_config, connect
    from buckram.sync.thread import LoopThread

    key = (os.getpid(), uri)
    found = _connections.get(key)
    if found is None:
        thread = LoopThread()
        config = client_config()

        async def start() -> Client:
            return await connect(uri, config=config)

        try:
            client = thread.run(start)
        except BaseException:
            thread.stop()
            raise
        found = _connections[key] = Connection(thread, client, sync.Client(thread, client, config))
    return found


def close_connections() -> None:
    """Close those of this process: a program that goes on after its cluster has gone."""
    for key in [key for key in _connections if key[0] == os.getpid()]:
        _connections.pop(key).blocking.close()


def shared_client(uri: str) -> sync.Client:
    """The blocking client of this process's connection."""
    return connection(uri).blocking


_settled = 0


def settle() -> None:
    """To be called when a task begins: what is loaded by now stays for as long as the process, so Python's collector,
    which PySpark runs after every task, need not walk it each time (15 ms, an eighth of what a scan costs).

    Only in processes that PySpark forked, and only for their first tasks: what later ones hold is not for good.
    """
    global _settled
    keep_freed_memory()
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if _settled < 2 and spec is not None and spec.name == "pyspark.daemon":
        _settled += 1
        gc.freeze()


class plainly:
    """Our errors leave without the frames they came through: Spark prints them all, and they help nobody."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, BuckramError):
            # Not a generator's context manager: that would put the frames back.
            raise error.with_traceback(None) from None


# -- executors --------------------------------------------------------------------------------------------


class _NoKeys:
    """The keys of a store that was not opened. Who chooses no bookies needs to know nothing of them."""

    async def children(
        self, parent: str, *, after: str = "", limit: int = 1000, watch: Notify | None = None
    ) -> list[str]:
        return []


class PinnedStore:
    """What a client that only reads known ledgers asks a metadata store: where bookies are, and how a ledger has
    changed. The first is told by the planner; the second opens the real store, the first time it is asked."""

    def __init__(self, uri: str, cluster: str, history: History) -> None:
        self.uri, self._cluster, self._history = uri, cluster, history
        self._asked = False
        self._identity_required = False
        self._pins: dict[str, BookieInfo] = {}
        self._watch: Notify | None = None
        self._opening = asyncio.Lock()
        self._real: MetadataStore | None = None

    @property
    def own(self) -> str:
        return "" if self._real is None else self._real.own

    @property
    def keys(self) -> _NoKeys | KeyStore:
        return _NoKeys() if self._real is None else self._real.keys

    def pin(self, bookies: Iterable[BookieInfo], *, identity_required: bool) -> bool:
        """Bookies are here, and have to say who they are; True when that is news."""
        changed = identity_required != self._identity_required
        self._identity_required = identity_required
        news = [info for info in bookies if self._pins.get(info.bookie_id) != info]
        for info in news:
            # Who was at this address before is there no more.
            for other in [b for b, old in self._pins.items() if old.address == info.address]:
                del self._pins[other]
            self._pins[info.bookie_id] = info
        return (bool(news) or changed) and self._real is None

    async def instance_id(self) -> str:
        return self._cluster

    async def history(self, watch: Notify | None = None) -> History:
        """As the planner saw it; asked again, a bookie knows more."""
        if not self._asked:
            self._asked = True
            return self._history
        return await (await self._opened()).history(watch)

    async def identity_required(self, watch: Notify | None = None) -> bool:
        return await self._real.identity_required(watch) if self._real is not None else self._identity_required

    async def bookies(self, watch: Notify | None = None) -> BookieSet:
        if self._real is not None:
            return await self._real.bookies(watch)
        self._watch = watch
        return BookieSet(dict(self._pins), {})

    async def read_ledger(self, ledger_id: LedgerId, watch: Notify | None = None) -> Versioned:
        return await (await self._opened()).read_ledger(ledger_id, watch)

    async def _opened(self) -> MetadataStore:
        async with self._opening:
            if self._real is None:
                self._real = await self._open()
                if self._watch is not None:
                    self._watch()
            return self._real

    async def _open(self) -> MetadataStore:
        from buckram.metadata.uri import open_store

        try:
            return await open_store(self.uri)
        except BuckramError as error:
            # To a reader this is: no news. Its own failure says more to the user.
            raise MetadataUnavailable(str(error)) from None

    async def close(self) -> None:
        if self._real is not None:
            await self._real.close()


class Direct(NamedTuple):
    """A client over a PinnedStore, on a loop in a thread of its own."""

    thread: LoopThread
    client: Client
    store: PinnedStore

    def pin(self, bookies: Iterable[BookieInfo], *, identity_required: bool) -> None:
        """Before reading: where the bookies are."""
        if self.store.pin(bookies, identity_required=identity_required):
            self.thread.run(self.client.services.identities.refresh)
            self.thread.run(self.client.services.bookies.refresh)


_direct: dict[tuple[int, str, str, History], Direct] = {}


def direct(uri: str, cluster: str, history: History) -> Direct:
    """One a process and cluster, which has this instance id and this past."""
    from buckram.client.client import connect
    from buckram.sync.thread import LoopThread

    key = (os.getpid(), uri, cluster, history)
    found = _direct.get(key)
    if found is None:
        thread = LoopThread()
        store = PinnedStore(uri, cluster, history)

        async def start() -> Client:
            # Readers of known ledgers call nothing else of a store.
            return await connect(cast("MetadataStore", store))

        found = _direct[key] = Direct(thread, thread.run(start), store)
    return found
