"""A cluster in this process: real bookies, real TCP on loopback, real files in a temporary folder.

It runs on the caller's loop, or, for tests that are not async, on a loop of its own in a thread, with plain calls.
Bookies are numbered from 0. A kill -9 in the middle of a disk write is not possible in one process; for that run
bookies as processes (`buckram.launch.processes`).
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from buckram.bookie.process import Bookie
from buckram.client.shared.handles import Opening
from buckram.cluster import Client, connect
from buckram.config import BookieConfig, ClientConfig, NetConfig, StoreConfig
from buckram.errors import InvalidArgument
from buckram.metadata.uri import init_cluster, open_store
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.disk.neighbours import Neighbours
from buckram.runtime.production import production_runtime
from buckram.seams import Clock, Disk, Listener, LocalFiles, MetadataStore, Network, Runtime

_numbers = itertools.count()
MIB = 1024 * 1024
# This is small, so that a test with ten clusters fills neither the disk nor the memory.
STORE = StoreConfig(segment_bytes=32 * MIB, tail_cache_bytes=4 * MIB)
_PORT_TAKEN_S = 30.0
"""Time for which a restart waits for the bookie's port, seconds: a connection of another process may hold it briefly.
"""


class _Gate(asyncio.Protocol):
    """The protocol of a bookie's connection. While its network is paused, events wait here."""

    def __init__(self, inner: asyncio.Protocol, network: _GatedNetwork) -> None:
        self._inner, self._network = inner, network
        self._waiting: list[Callable[[], object]] = []
        self._passed_on = False

    def _pass(self, event: Callable[[], object]) -> None:
        if self._network.paused:
            if not self._waiting:
                self._network.held.append(self)
            self._waiting.append(event)
        else:
            event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        def pass_on() -> None:
            self._passed_on = True
            self._inner.connection_made(transport)

        self._pass(pass_on)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass this on even while paused; waiting events are lost with the connection."""
        self._waiting.clear()
        if self._passed_on:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._passed_on:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._passed_on:
            self._inner.resume_writing()

    def data_received(self, data: bytes) -> None:
        self._pass(lambda: self._inner.data_received(data))

    def eof_received(self) -> bool:
        self._pass(self._inner.eof_received)
        return False

    def release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event()


class _GatedNetwork:
    """The production network, which can be paused: meanwhile nothing that arrives is handled."""

    def __init__(self, inner: Network) -> None:
        self._inner = inner
        self.paused = False
        self.held: list[_Gate] = []

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        return await self._inner.connect(host, port, factory)

    async def listen(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> Listener:
        return await self._inner.listen(host, port, lambda: _Gate(factory(), self))

    def resume(self) -> None:
        self.paused = False
        held, self.held = self.held, []
        for gate in held:
            gate.release()


class _Node:
    """One bookie with its directory, network and store, over restarts."""

    def __init__(self, directory: Path, config: BookieConfig, uri: str) -> None:
        self.directory, self.config, self.uri = directory, config, uri
        self.clock: Clock | None = None
        """Its wall clock; None for that of the machine."""
        self.files: LocalFiles | None = Neighbours(in_threads=True)
        """Reads the files of neighbouring bookies on this machine; None: this bookie reads none."""
        self.network: _GatedNetwork | None = None
        self.bookie: Bookie | None = None
        self._disk: Disk | None = None
        self._store: MetadataStore | None = None

    async def start(self) -> None:
        runtime = production_runtime()
        self.network = _GatedNetwork(runtime.network)
        runtime = Runtime(self.network, self.clock or runtime.clock, runtime.rng, runtime.stats, self.files)
        self._disk = LocalDisk(str(self.directory))
        self._store = await open_store(self.uri, runtime)
        again = partial(open_store, self.uri, runtime)
        bookie = Bookie(runtime, self._disk, self._store, self.config, STORE, NetConfig(), open_store=again)
        try:
            info = await bookie.start()
        except BaseException:
            await self._close_parts()
            raise
        self.bookie = bookie
        # After a restart it has the same id and the same port, as with an administrator.
        assert info.address is not None
        self.config = replace(self.config, port=info.address.port)

    async def stop(self, *, abruptly: bool) -> None:
        bookie, self.bookie = self.bookie, None
        if bookie is None:
            return
        if abruptly:
            # This comes before the pause ends: a process that hangs never handles what has arrived.
            bookie.server.abort()
        if self.network is not None:
            self.network.resume()
        await bookie.stop()
        await self._close_parts()

    async def _close_parts(self) -> None:
        if self._store is not None:
            await self._store.close()
        if self._disk is not None:
            self._disk.close()


class Cluster:
    """A running cluster, as returned by `cluster()`."""

    def __init__(self, uri: str, nodes: list[_Node]) -> None:
        self.uri = uri
        """The URI for connect()."""
        self._nodes = nodes
        self._clients: list[Client] = []

    @property
    def bookies(self) -> list[str]:
        """The bookies' ids, by their numbers."""
        return [node.config.bookie_id for node in self._nodes]

    def client(self, config: ClientConfig | None = None) -> Opening[Client]:
        """Open a client: `async with c.client() as client`, or await it. One that is open at the end is closed then."""

        async def start() -> Client:
            client = await connect(self.uri, config=config)
            self._clients.append(client)
            return client

        return Opening(start, "cluster.client()")

    async def kill(self, number: int) -> None:
        """Kill a bookie: its connections are reset, nothing more is answered, and its registration ends."""
        await self._node(number).stop(abruptly=True)

    async def stop(self, number: int) -> None:
        """Stop a bookie in order, as SIGTERM does."""
        await self._node(number).stop(abruptly=False)

    async def pause(self, number: int) -> None:
        """Make a bookie hang: it stays registered and connections stay open, but nothing that arrives is handled."""
        node = self._node(number)
        if node.network is not None:
            node.network.paused = True

    async def resume(self, number: int) -> None:
        """End a pause; what has arrived meanwhile is handled, in order."""
        node = self._node(number)
        if node.network is not None:
            node.network.resume()

    async def restart(self, number: int) -> None:
        """Start a bookie again on its data; if it runs, it is stopped in order first. OSError: its port stays taken."""
        node = self._node(number)
        await node.stop(abruptly=False)
        loop = asyncio.get_running_loop()
        limit = loop.time() + _PORT_TAKEN_S
        while True:
            try:
                await node.start()
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE or loop.time() >= limit:
                    raise
            await asyncio.sleep(0.1)

    async def add(self) -> int:
        """Start one more bookie, and return its number."""
        first = self._nodes[0]
        number = len(self._nodes)
        node = _node(first.directory.parent, number, self.uri)
        node.clock = first.clock
        await node.start()
        self._nodes.append(node)
        return number

    async def close(self) -> None:
        """Stop all bookies and clients."""
        for client in self._clients:
            await client.close()
        for node in self._nodes:
            await node.stop(abruptly=False)

    def _node(self, number: int) -> _Node:
        if not 0 <= number < len(self._nodes):
            raise InvalidArgument(f"bookie {number}: there are {len(self._nodes)}, numbered from 0")
        return self._nodes[number]


def _node(root: Path, number: int, uri: str) -> _Node:
    directory = root / f"bookie-{number}"
    directory.mkdir(exist_ok=True)
    return _Node(directory, BookieConfig(port=0, bookie_id=f"bookie-{number}"), uri)


@asynccontextmanager
async def cluster(
    bookies: int = 3, *, metadata: Literal["memory", "sqlite"] | str = "memory", clock: Clock | None = None
) -> AsyncIterator[Cluster]:
    """Run a new cluster: `async with cluster(bookies=3) as c`. Its data is deleted at the end.

    With `metadata="memory"` its URI works on this event loop only, with "sqlite" in other threads and processes, too.
    Any other value is the URI of a metadata store, which must run and is not deleted at the end. `clock` is the wall
    clock of the bookies, for tests of retention by age, whose clients need the same clock in their runtime. By such a
    clock time passes where it has `up_us()`, too, which goes on with it; otherwise moving it means that it was set.
    Raises InvalidArgument if `bookies` is less than 1.
    """
    if bookies < 1:
        raise InvalidArgument(f"bookies = {bookies}: at least one is needed")
    with tempfile.TemporaryDirectory(prefix="buckram-test-") as folder:
        root = Path(folder)
        name = f"memory:test-{os.getpid()}-{next(_numbers)}"
        uri = {"memory": name, "sqlite": f"sqlite://{root / 'metadata.db'}"}.get(metadata, metadata)
        # This session keeps a cluster in memory alive while no other session is open.
        store = await open_store(uri)
        running = Cluster(uri, [_node(root, number, uri) for number in range(bookies)])
        try:
            await init_cluster(store)
            for node in running._nodes:
                node.clock = clock
                await node.start()
            yield running
        finally:
            await running.close()
            await store.close()


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
