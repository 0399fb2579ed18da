"""Spreading work over Spark's executors, one task per partition; and clients for the driver and for tasks.

The tasks travel as partitions of a data source that is registered for each round, because PySpark's other ways either
need pandas or convert everything to rows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from buckram.runtime.net.security.logins import secured_by
from buckram.runtime.process.process_setup import loop_factory
from buckram.runtime.production import production_runtime
from buckram.spark.shared.clients import prepare_process
from buckram.spark.shared.cluster_uri import ClusterUri, cluster_uri, encryption_of, way_in
from buckram.sync.thread import LoopThread

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from buckram.client.shared.handles import Opening
    from buckram.cluster import Client
    from buckram.seams import Runtime

T = TypeVar("T")
Row = dict[str, Any]


class Progress(Protocol):
    def __call__(self, done: int, total: int, /) -> None:
        """Take note that `done` of `total` pieces of work are done."""
        ...


class _Task(InputPartition):
    def __init__(self, value: Any) -> None:
        super().__init__(value)


class _Reader(DataSourceReader):
    def __init__(self, tasks: Sequence[Any], work: Callable[[Any], Sequence[Row]], schema: StructType) -> None:
        self.tasks, self.work, self.schema = tasks, work, schema

    def partitions(self) -> list[InputPartition]:
        return [_Task(task) for task in self.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        prepare_process()
        if partition is not None and partition.value is not None:
            rows = self.work(partition.value)
            yield pa.RecordBatch.from_pylist(list(rows), schema=to_arrow_schema(self.schema, timezone="UTC"))


def spread(session: SparkSession, tasks: Sequence[T], work: Callable[[T], Sequence[Row]], schema: str) -> DataFrame:
    """Return a frame with the rows that `work` returns for each task. `schema` is in Spark's DDL.

    Executors compute the rows anew whenever the frame is used. `work` must be a function of a module that executors
    have, tasks must be picklable, and there must be at least one.
    """
    wanted = list(tasks)

    class Job(DataSource):
        @classmethod
        def name(cls) -> str:
            return "buckram-job"

        def schema(self) -> str:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return _Reader(wanted, work, schema)

    session.dataSource.register(Job)
    return session.read.format("buckram-job").load()


def in_task(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine in an executor's process, on an event loop that is closed afterwards."""

    async def run() -> T:
        return await main()

    with asyncio.Runner(loop_factory=loop_factory(os.environ)) as runner:
        return runner.run(run())


def connected(cluster: ClusterUri) -> Opening[Client]:
    """Connect as `connect` does, with the driver's token and TLS, in an executor whose environment has none."""
    from buckram.cluster import connect

    return connect(str(cluster), encryption=encryption_of(cluster), **way_in(cluster))


def executor_runtime(cluster: ClusterUri) -> Runtime:
    """Return a runtime for connections to bookies without a client in an executor, with the driver's TLS and token.

    Raises ConfigError.
    """
    world = production_runtime()
    return replace(world, network=secured_by(os.environ, world.network, **way_in(cluster)))


class Driver:
    """A client on an event loop of its own, so that jobs also work where a loop runs, as in notebooks."""

    def __init__(self, thread: LoopThread, client: Client, cluster: ClusterUri) -> None:
        self._thread, self.client, self.cluster = thread, client, cluster

    def run(self, main: Callable[[Client], Awaitable[T]]) -> T:
        """Run `await main(client)` on the loop, wait for it, and return its result."""
        return self._thread.run(lambda: main(self.client))


@contextmanager
def driver(metadata: str) -> Iterator[Driver]:
    """Connect to the cluster with this metadata URI. Its `cluster` takes token and TLS from the environment of this
    process to the executors. Raises ConfigError, MetadataUnavailable."""
    cluster = metadata if isinstance(metadata, ClusterUri) else cluster_uri(metadata, {})
    thread = LoopThread()

    async def start() -> Client:
        return await connected(cluster)

    try:
        client = thread.run(start)
        try:
            yield Driver(thread, client, cluster)
        finally:
            thread.run(client.close)
    finally:
        thread.stop()


def parallelism(session: SparkSession) -> int:
    """Return how many tasks run at the same time, or 2 if that is not known."""
    try:
        return max(1, int(session.sparkContext.defaultParallelism))
    except Exception:  # Spark Connect has no SparkContext, and raises different errors for that.
        return max(1, int(str(session.conf.get("spark.default.parallelism", "2"))))
