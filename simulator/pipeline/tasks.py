"""The tasks of one micro-batch on executors: attempts that die and are run again, or run twice at once.

Readers, writers and partitions are pickled on their way to a task, and its message on its way back. Of a task that ran
twice the driver gets one message; what the other attempt did stays done.
"""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from buckram.spark.sink.transactions import BATCH_ID, QUERY_ID, RUN_ID, Part
from simulator.engine.world import Died
from simulator.pipeline.bridge import SparkProcess
from simulator.pipeline.queries import Query, place_of
from simulator.pipeline.stage import Stage

ATTEMPTS = 4
SHUFFLED = 3
"""Partitions behind a shuffle."""


@dataclass(frozen=True, slots=True)
class Task:
    """What TaskContext tells of an attempt."""

    partition: int
    attempt: int
    number: int
    properties: dict[str, str]

    def partitionId(self) -> int:
        return self.partition

    def attemptNumber(self) -> int:
        return self.attempt

    def taskAttemptId(self) -> int:
        return self.number

    def getLocalProperty(self, key: str) -> str | None:
        return self.properties.get(key)


@dataclass(frozen=True, slots=True)
class Stages:
    """What the driver sends to the tasks of a batch: pickled reader, partitions and writer."""

    reader: bytes
    partitions: list[bytes]
    writer: bytes


class Executors:
    """The executors of one run of a query. When the driver dies they go on for a while."""

    def __init__(self, stage: Stage, query: Query, run: str) -> None:
        self._stage, self._world, self._query, self._run = stage, stage.world, query, run
        self._rng = random.Random(f"{stage.plan.seed} executors {run}")
        self._processes: list[SparkProcess | None] = [None, None]
        self._count = 0

    async def batch(self, identity: str, number: int, work: Stages) -> list[bytes]:
        """Run all tasks of a batch and return their messages, pickled. Raises the error of one that failed for good."""
        properties = {QUERY_ID: identity, BATCH_ID: str(number), RUN_ID: self._run}
        if len(work.partitions) > 1:
            self._stage.situation("a batch had several partitions")
        rows = self._query.rows()
        if not self._query.shuffled:
            return await self._tasks([_both(work, part, rows) for part in work.partitions], properties)
        self._stage.situation("a batch was shuffled")
        read = await self._tasks([_reading(work.reader, part) for part in work.partitions], properties)
        shares: list[list[bytes]] = [[] for _ in range(SHUFFLED)]
        for one in read:
            for value in pickle.loads(one):
                shares[place_of(value) // 7 % SHUFFLED].append(value)
        for share in shares:
            self._rng.shuffle(share)  # rows of a shuffle come in any order
        return await self._tasks([_writing(work.writer, share, rows) for share in shares], properties)

    async def _tasks(self, works: list[Callable[[], bytes]], properties: dict[str, str]) -> list[bytes]:
        tasks = [
            self._stage.background(self._task(place, work, properties), f"task {place}")
            for place, work in enumerate(works)
        ]
        return [_unwrapped(found) for found in await asyncio.gather(*tasks)]

    async def _task(self, place: int, work: Callable[[], bytes], properties: dict[str, str]) -> bytes | Exception:
        last: Exception = Died("executor")
        for attempt in range(ATTEMPTS):
            twice = self._rng.random() < self._stage.pipeline.speculating and not self._stage.over
            runs = [self._attempt(place, attempt + ATTEMPTS * copy, work, properties) for copy in range(1 + twice)]
            if twice:
                self._stage.situation("a task ran twice at once")
            found = await self._first([self._stage.background(run, f"attempt {place}") for run in runs])
            if isinstance(found, bytes):
                return found
            last = found
            if isinstance(last, Died):
                self._stage.situation("a task died and was run again")
        return last

    async def _first(self, attempts: list[asyncio.Task[bytes | Exception]]) -> bytes | Exception:
        """Return the first good outcome. The other attempt goes on, unless its executor is killed."""
        found: bytes | Exception = Died("executor")
        waiting = list(attempts)
        while waiting:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            ended = [task for task in waiting if task.done()]
            waiting = [task for task in waiting if not task.done()]
            for task in ended:
                found = task.result()
                if isinstance(found, bytes):
                    for loser in waiting:
                        loser.add_done_callback(self._lost)
                    return found
        return found

    def _lost(self, loser: asyncio.Task[bytes | Exception]) -> None:
        found = loser.result()
        if isinstance(found, bytes) and isinstance(part := pickle.loads(found), Part) and part.ledgers:
            self._stage.situation("the loser of a task wrote rows as well")

    async def _attempt(
        self, place: int, attempt: int, work: Callable[[], bytes], properties: dict[str, str]
    ) -> bytes | Exception:
        self._count += 1
        task = Task(place, attempt, self._count, properties)
        executor = self._executor()
        if self._rng.random() < self._stage.pipeline.failing and not self._stage.over:
            executor.process.crash_after(self._rng.randrange(120))
        try:
            return await executor.call(work, task)
        except Exception as error:  # as Spark does, whatever it is
            self._stage.note(executor.host, f"attempt {attempt} of task {place}: {type(error).__name__}")
            return error

    def _executor(self) -> SparkProcess:
        place = self._rng.randrange(len(self._processes))
        found = self._processes[place]
        if found is None or not found.alive:
            found = self._processes[place] = SparkProcess(self._world, f"{self._query.name}e{place + 1}")
        return found

    def stop(self) -> Coroutine[Any, Any, None]:
        """End the executors a while after their driver."""
        processes = [process for process in self._processes if process is not None]
        delay = self._rng.choice((0.0, 0.05, 1.0))

        async def end() -> None:
            await asyncio.sleep(delay)
            for one in processes:
                one.process.crash()

        return end()


def _unwrapped(found: bytes | Exception) -> bytes:
    if isinstance(found, Exception):
        raise found
    return found


# -- what runs in a task --------------------------------------------------------------------------------------


def _both(work: Stages, part: bytes, rows: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Callable[[], bytes]:
    def run() -> bytes:
        reader, writer = pickle.loads(work.reader), pickle.loads(work.writer)
        return pickle.dumps(writer.write(map(rows, reader.read(pickle.loads(part)))))

    return run


def _reading(reader: bytes, part: bytes) -> Callable[[], bytes]:
    def run() -> bytes:
        found = pickle.loads(reader).read(pickle.loads(part))
        return pickle.dumps([value for batch in found for value in batch.column("value").to_pylist()])

    return run


def _writing(
    writer: bytes, share: list[bytes], rows: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> Callable[[], bytes]:
    def run() -> bytes:
        batches = [rows(pa.RecordBatch.from_pydict({"value": pa.array(share, pa.binary())}))] if share else []
        return pickle.dumps(pickle.loads(writer).write(iter(batches)))

    return run


__all__ = ["Executors", "Stages", "Task"]
