"""Blocking code of Spark's Python processes, in simulated processes: clients that a thread waits for.

Sources and sinks get their clients from `CLIENTS` of `spark/shared/clients.py`. Here that is `SimClients`: a call into
the client lets the simulation go on until the call is done. What a thread waits for when its process dies never comes.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar, cast

from pyspark import TaskContext

from buckram import sync
from buckram.cluster import Client, connect
from buckram.seams import MetadataStore
from buckram.spark.shared.clients import CLIENTS, Connection, Direct, PinnedStore
from buckram.sync.thread import LoopThread
from buckram.types import History
from simulator.engine.loop import Crashed, Process
from simulator.engine.planting import patched
from simulator.engine.threads import SimThreads
from simulator.engine.world import World

T = TypeVar("T")
TASK: ContextVar[Any] = ContextVar("buckram_sim_task", default=None)
"""What `TaskContext.get()` returns in a thread of an executor."""


class _Started(Future[Any]):
    """A call that has begun; whoever asks for its result waits in the simulation."""

    def __init__(self, wait: Callable[[Callable[[], bool]], None]) -> None:
        super().__init__()
        self._wait = wait

    def result(self, timeout: float | None = None) -> Any:
        self._wait(self.done)
        return super().result(0)


class SimLoopThread(LoopThread):
    """`LoopThread` of a simulated process. The loop is that of the simulation, which a waiting thread lets go on."""

    def __init__(self, process: Process, threads: SimThreads) -> None:
        self.process, self.threads = process, threads
        self.loop = process.loop

    @property
    def forked(self) -> bool:
        return False

    @property
    def usable(self) -> bool:
        return not self.process.dead and not self.threads.over

    def check(self) -> None:
        if not self.usable:
            raise Crashed(self.process.name)

    def wait(self, ready: Callable[[], bool]) -> None:
        """Let the simulation go on until `ready` returns true. Raises Crashed if the process is dead then."""
        self.check()
        if not ready():
            self.threads.wait(ready)
        if not ready():
            raise Crashed(self.process.name)

    def run(self, make: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        future = self.start(make)
        self.wait(future.done)
        return Future.result(future, 0)

    def start(self, make: Callable[[], Awaitable[T]]) -> Future[T]:
        self.check()
        done = _Started(self.wait)

        async def main() -> None:
            try:
                found = await make()
            except Exception as error:  # whoever asks for the result gets it
                done.set_exception(error)
            else:
                done.set_result(found)
            self.threads.wake()

        self.process.spawn(main(), "call")
        return done

    def post(self, make: Callable[[], Awaitable[object]]) -> None:
        if self.usable:
            self.start(make)

    def stop(self, last: Callable[[], Awaitable[None]] | None = None, timeout_s: float | None = None) -> None:
        """Do nothing: the process ends without it."""


class SimClients:
    """`Clients` of one simulated process."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process
        self._runtime = world.runtime(process)
        self.threads = cast("SimThreads", self._runtime.threads)
        self.thread = SimLoopThread(process, self.threads)
        self._connection: Connection | None = None
        self._direct: dict[tuple[str, History], Direct] = {}

    def connection(self, uri: str) -> Connection:
        if self._connection is None:
            client = self.thread.run(lambda: self._connect(self._store()))
            config = self._world.configs.client
            self._connection = Connection(self.thread, client, sync.Client(self.thread, client, config))
        return self._connection

    def direct(self, uri: str, cluster: str, history: History) -> Direct:
        found = self._direct.get((cluster, history))
        if found is None:

            async def real(_: str) -> MetadataStore:
                return self._store()

            store = PinnedStore(uri, cluster, history, real)
            client = self.thread.run(lambda: self._connect(cast("MetadataStore", store), "direct"))
            found = self._direct[cluster, history] = Direct(self.thread, client, store)
        return found

    def pause(self, seconds: float) -> None:
        over: list[bool] = []

        def passed() -> None:
            over.append(True)
            self.threads.wake()

        self._process.loop.call_later(seconds, passed, context=self._process.context)
        self.thread.wait(lambda: bool(over))

    def _store(self) -> MetadataStore:
        return self._world.store(self._process, self._runtime.rng)

    async def _connect(self, store: MetadataStore, kind: str = "") -> Client:
        runtime, configs = self._runtime, self._world.configs
        if kind:
            name = f"{self._world.seed} {self._process.name} {self._process.index} {kind}"
            runtime = replace(runtime, rng=random.Random(name))
        return await connect(store, config=configs.client, net=configs.net, runtime=runtime)


class SparkProcess:
    """One Python process of Spark, on a host. It is alive until it crashes; another one follows it then."""

    def __init__(self, world: World, host: str) -> None:
        self._world, self.host = world, host
        self.process = world.process(host)
        self.clients = SimClients(world, self.process)
        self.process.context.run(CLIENTS.set, self.clients)

    @property
    def alive(self) -> bool:
        return not self.process.dead

    async def call(self, work: Callable[[], T], task: Any = None) -> T:
        """Run blocking code in a thread of the process, as the task `task`. Raises its error, or Died."""
        return await self._world.join(self.process, self._in_a_thread(work, task), "spark")

    async def _in_a_thread(self, work: Callable[[], T], task: Any) -> T:
        loop = self.process.loop
        done = loop.create_future()

        def run() -> None:
            TASK.set(task)
            try:
                found = work()
            except Exception as error:  # it is the caller's
                outcome: tuple[bool, Any] = False, error
            else:
                outcome = True, found
            loop.call_soon(self._told, done, outcome, context=self.process.context)

        self.clients.threads.start(run, self.host)
        good, found = await done
        if not good:
            raise found
        return cast("T", found)

    def _told(self, done: Any, outcome: tuple[bool, Any]) -> None:
        if not done.done():
            done.set_result(outcome)


def simulated_tasks() -> AbstractContextManager[None]:
    """Have `TaskContext.get` return the task of the simulated thread that asks."""

    def get(cls: type[TaskContext]) -> Any:
        return TASK.get()

    return patched((TaskContext, "get", classmethod(get)))


__all__ = ["TASK", "SimClients", "SparkProcess", "simulated_tasks"]
