"""The clients in Spark's processes, which are forked, reused, and end without running exit hooks.

There are two kinds: `connection`, a client of the cluster with a metadata session, for planning, cursors and writing;
and `direct_client`, a client for executors that reads ledgers whose metadata the planner has sent, and asks the
metadata store only after a failure.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, cast

from buckram.errors import BuckramError, MetadataUnavailable, NoSuchKey
from buckram.runtime.process.process_setup import keep_freed_memory
from buckram.spark.shared.cluster_uri import encryption_of, way_in
from buckram.types import BookieInfo, BookieSet, History, LedgerId, Versioned

if TYPE_CHECKING:
    from buckram import sync
    from buckram.cluster import Client
    from buckram.seams import KeyStore, MetadataStore, Notify
    from buckram.sync.thread import LoopThread
    from buckram.types import KeyValue

T = TypeVar("T")


class Connection(NamedTuple):
    """A client of the cluster, on an event loop in a thread of its own."""

    thread: LoopThread
    client: Client
    blocking: sync.Client

    def run(self, call: Callable[[Client], Awaitable[T]]) -> T:
        """Run `await call(client)` on the loop, wait for it, and return its result."""
        return self.thread.run(lambda: call(self.client))


class Clients(Protocol):
    """Where code in Spark's processes gets its clients, and how it waits between attempts.

    Spark's processes have those of `ProcessClients`. Whoever runs this code elsewhere, as simulated lives do, sets
    others in the context of the calls (`CLIENTS`).
    """

    def connection(self, uri: str) -> Connection:
        """Return the client of the cluster; the first call connects. ConfigError, MetadataUnavailable."""
        ...

    def direct(self, uri: str, cluster: str, history: History) -> Direct:
        """Return the client for reading known ledgers of the cluster with this instance id and history."""
        ...

    def pause(self, seconds: float) -> None:
        """Block the caller for so long."""
        ...


def connection(uri: str) -> Connection:
    """Return this process's client of the cluster; the first call connects. ConfigError, MetadataUnavailable."""
    return CLIENTS.get().connection(uri)


def direct_client(uri: str, cluster: str, history: History) -> Direct:
    """Return this process's client for reading known ledgers of the cluster with this instance id and history."""
    return CLIENTS.get().direct(uri, cluster, history)


def pause(seconds: float) -> None:
    """Block this task before another attempt."""
    CLIENTS.get().pause(seconds)


def shared_client(uri: str) -> sync.Client:
    """Return the blocking client of this process's connection."""
    return connection(uri).blocking


_times_prepared = 0


def prepare_process() -> None:
    """Prepare this process for a task: keep freed memory, and exempt loaded objects from garbage collection.

    PySpark collects after every task, and walking the loaded modules takes 15 ms, an eighth of what a scan costs. Only
    processes that PySpark forked do it, at their first two tasks: later objects do not live for ever.
    """
    global _times_prepared
    keep_freed_memory()
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if _times_prepared < 2 and spec is not None and spec.name == "pyspark.daemon":
        _times_prepared += 1
        gc.freeze()


class without_traceback:
    """Removes the traceback from Buckram's errors, because Spark prints every frame and the message says enough."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, BuckramError):
            # contextlib.contextmanager is not used, since it would add the frames again.
            raise error.with_traceback(None) from None


# -- executors --------------------------------------------------------------------------------------------


class _NoKeys:
    """The keys of a metadata store that was not opened: none. Only the choice of bookies needs them."""

    async def get(self, key: str, watch: Notify | None = None) -> KeyValue:
        raise NoSuchKey(key)

    async def children(
        self, parent: str, *, after: str = "", limit: int = 1000, watch: Notify | None = None
    ) -> list[str]:
        return []


class PinnedStore:
    """The part of a metadata store that a client needs to read ledgers whose metadata is known.

    The addresses of bookies come from the planner (`pin`). The first question that only the real store can answer, such
    as a ledger's newer metadata, opens it.
    """

    def __init__(
        self, uri: str, cluster: str, history: History, open_real: Callable[[str], Awaitable[MetadataStore]]
    ) -> None:
        self.uri, self._cluster, self._history, self._open_real = uri, cluster, history, open_real
        self._asked = False
        self._identity_required = False
        self._pins: dict[str, BookieInfo] = {}
        self._watch: Notify | None = None
        self._opening = asyncio.Lock()
        self._real: MetadataStore | None = None

    @property
    def own(self) -> str:
        """The root of Buckram's own keys; empty until the real store is open."""
        return "" if self._real is None else self._real.own

    @property
    def root(self) -> str:
        """The root of the keys that Apache knows, too; empty until the real store is open."""
        return "" if self._real is None else self._real.root

    @property
    def keys(self) -> _NoKeys | KeyStore:
        """The keys of the real store, or none until it is open."""
        return _NoKeys() if self._real is None else self._real.keys

    def on_session_lost(self, notify: Notify) -> None:
        """Do nothing: a client that only reads keeps nothing in a session that could be lost."""

    def pin(self, bookies: Iterable[BookieInfo], *, identity_required: bool) -> bool:
        """Note the addresses of bookies, and whether they must prove their identity. True if that changed something."""
        changed = identity_required != self._identity_required
        self._identity_required = identity_required
        news = [info for info in bookies if self._pins.get(info.bookie_id) != info]
        for info in news:
            # Another bookie that had this address has moved.
            for other in [b for b, old in self._pins.items() if old.address == info.address]:
                del self._pins[other]
            self._pins[info.bookie_id] = info
        return (bool(news) or changed) and self._real is None

    async def instance_id(self) -> str:
        """Return the cluster's instance id, as the planner saw it."""
        return self._cluster

    async def history(self, watch: Notify | None = None) -> History:
        """Return the history that the planner saw, then that of the real store: a bookie has seen a newer one."""
        if not self._asked:
            self._asked = True
            return self._history
        return await (await self._opened()).history(watch)

    async def identity_required(self, watch: Notify | None = None) -> bool:
        """Return whether bookies must prove their identity, as the planner saw it, or as the real store has it."""
        return await self._real.identity_required(watch) if self._real is not None else self._identity_required

    async def bookies(self, watch: Notify | None = None) -> BookieSet:
        """Return the pinned bookies, or those of the real store. Opening the real store fires the watch."""
        if self._real is not None:
            return await self._real.bookies(watch)
        self._watch = watch
        return BookieSet(dict(self._pins), {})

    async def read_ledger(self, ledger_id: LedgerId, watch: Notify | None = None) -> Versioned:
        """Read a ledger's metadata from the real store, which is opened for that."""
        return await (await self._opened()).read_ledger(ledger_id, watch)

    async def _opened(self) -> MetadataStore:
        async with self._opening:
            if self._real is None:
                self._real = await self._open()
                if self._watch is not None:
                    self._watch()
            return self._real

    async def _open(self) -> MetadataStore:
        try:
            return await self._open_real(self.uri)
        except BuckramError as error:
            # A reader ignores an unavailable store, and the error of its read says more to the user.
            raise MetadataUnavailable(str(error)) from None

    async def close(self) -> None:
        if self._real is not None:
            await self._real.close()


class Direct(NamedTuple):
    """A client over a PinnedStore, on an event loop in a thread of its own."""

    thread: LoopThread
    client: Client
    store: PinnedStore

    def pin(self, bookies: Iterable[BookieInfo], *, identity_required: bool) -> None:
        """Tell the client the addresses of bookies, before it reads from them."""
        if self.store.pin(bookies, identity_required=identity_required):
            self.thread.run(self.client.services.identities.refresh)
            self.thread.run(self.client.services.bookies.refresh)


# -- processes --------------------------------------------------------------------------------------------


class ProcessClients:
    """`Clients` of Spark's processes: each client is connected once, on an event loop in a thread of its own."""

    def __init__(self) -> None:
        self._connections: dict[tuple[int, str, str], Connection] = {}
        self._direct: dict[tuple[int, str, str, str, History], Direct] = {}

    def connection(self, uri: str) -> Connection:
        from buckram import sync
        from buckram.client.ledger_client import client_config
        from buckram.cluster import connect
        from buckram.sync.thread import LoopThread

        key = (os.getpid(), str(uri), str(way_in(uri)))
        found = self._connections.get(key)
        if found is None:
            thread = LoopThread()
            config = client_config()

            async def start() -> Client:
                return await connect(str(uri), config=config, encryption=encryption_of(uri), **way_in(uri))

            try:
                client = thread.run(start)
            except BaseException:
                thread.stop()
                raise
            found = self._connections[key] = Connection(thread, client, sync.Client(thread, client, config))
        return found

    def direct(self, uri: str, cluster: str, history: History) -> Direct:
        from buckram.cluster import connect
        from buckram.sync.thread import LoopThread

        key = (os.getpid(), str(uri), str(way_in(uri)), cluster, history)
        found = self._direct.get(key)
        if found is None:
            thread = LoopThread()
            store = PinnedStore(uri, cluster, history, _open_store)

            async def start() -> Client:
                # Reading ledgers with known metadata calls only what PinnedStore has.
                return await connect(cast("MetadataStore", store), encryption=encryption_of(uri), **way_in(uri))

            found = self._direct[key] = Direct(thread, thread.run(start), store)
        return found

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        """Close this process's connections."""
        for key in [key for key in self._connections if key[0] == os.getpid()]:
            self._connections.pop(key).blocking.close()


async def _open_store(uri: str) -> MetadataStore:
    from buckram.metadata.uri import open_store
    from buckram.runtime.net.security.logins import secured_by
    from buckram.runtime.production import production_runtime

    world = production_runtime()
    world = replace(world, network=secured_by(os.environ, world.network, **way_in(uri)))
    return await open_store(str(uri), world)


_PROCESS = ProcessClients()
CLIENTS: ContextVar[Clients] = ContextVar("buckram_spark_clients", default=_PROCESS)


def close_connections() -> None:
    """Close this process's clients, for a program that continues after its cluster was stopped."""
    _PROCESS.close()
