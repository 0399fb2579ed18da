"""One run of a streaming query, as Spark's MicroBatchExecution does it, up to the driver's death at any step.

The log of offsets has the end of a batch before the batch is planned, the log of commits has it when the sink has
committed. A run that finds a batch in the first log only runs it again, between the offsets that are there. The
source lives in the driver's process for the whole run; the sink's writer is made twice for each batch, for its tasks
and for the commit. Not here: the tasks (`tasks.py`), who starts runs (`operating.py`).
"""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from simulator.engine.world import Died
from simulator.pipeline.bridge import SparkProcess
from simulator.pipeline.checkpoint import Checkpoint
from simulator.pipeline.queries import READ, Query
from simulator.pipeline.stage import Stage
from simulator.pipeline.tasks import Executors, Stages

T = TypeVar("T")
BEHIND_OFFSETS, BEHIND_PLANNING, BEHIND_TASKS = "behind the offset log", "behind planning", "behind its tasks"
WITHIN_COMMIT, BEHIND_COMMIT = "within the sink's commit", "behind the sink's commit"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: "done" with all that there is, "stopped" before that, "killed", or "failed" with an error."""

    kind: str
    error: Exception | None = None
    batches: int = 0


class _Killed(Exception):
    """The driver died at a step."""


class Run:
    """One run of a query, in a driver of its own."""

    def __init__(self, stage: Stage, query: Query, number: int) -> None:
        self._stage, self._query = stage, query
        self._name = f"{query.name} {number}"
        self._rng = random.Random(f"{stage.plan.seed} run {self._name}")
        self._files = Checkpoint(stage.files, query.path)
        self._driver = SparkProcess(stage.world, f"{query.name}d")
        self._executors = Executors(stage, query, f"run {self._name}")
        self._number, self._identity, self._done = 0, "", 0
        self._reader: Any = None
        self._limit: Any = None

    async def go(self, triggers: int) -> Outcome:
        """Run so many batches, or all that there is to be read."""
        kind, error = "failed", None
        try:
            kind = await self._run(triggers)
        except (_Killed, Died):
            kind = "killed"
        except Exception as failure:  # as Spark does, whatever it is
            error = failure
        self._driver.process.crash()
        self._stage.background(self._executors.stop(), f"executors of {self._name}")
        what = "" if error is None else f": {type(error).__name__}"
        self._stage.note(self._query.name, f"run {self._name} {kind}{what} at batch {self._number}")
        return Outcome(kind, error, self._done)

    # -- the engine ---------------------------------------------------------------------------------------

    async def _run(self, triggers: int) -> str:
        files, query = self._files, self._query
        if not files.query:
            files.begin(str(uuid.UUID(int=self._rng.getrandbits(128), version=4)))
        self._identity = files.query
        self._reader = await self._python(lambda: query.reader().streamReader(schema=READ))
        reader = self._reader
        if self._rng.random() < 0.7 and isinstance(reader, SupportsTriggerAvailableNow):
            await self._python(reader.prepareForTriggerAvailableNow)
        self._limit = await self._python(reader.getDefaultReadLimit)
        start, pending = self._resumed()
        if pending:
            self._stage.model.plans(query, files.started(self._number), files.offset(self._number))
        for _ in range(triggers):
            if not pending:
                begun = start if start is not None else json.dumps(await self._python(reader.initialOffset))
                if start is None:
                    await self._pause()
                end = json.dumps(await self._python(lambda: reader.latestOffset(json.loads(begun), self._limit)))  # noqa: B023
                if self._rng.random() < 0.3:
                    await self._python(reader.reportLatestOffset)
                if end == start:
                    return "done"
                if not files.plan(self._number, end, self._now_ms(), begun):
                    return "stopped"
                self._stage.model.plans(query, begun, end)
                self._step(BEHIND_OFFSETS)
                if self._number and (self._number - 1) in files.planned():
                    await self._python(lambda: reader.commit(json.loads(files.offset(self._number - 1))))
            end = files.offset(self._number)
            await self._batch(start, end)
            start, pending = end, False
            self._number += 1
        return "stopped"

    def _resumed(self) -> tuple[str | None, bool]:
        """Return the start of the next batch, None at first, and whether that batch is in the log of offsets."""
        files = self._files
        planned, committed = files.planned(), files.committed()
        if not planned:
            return None, False
        last = planned[-1]
        if committed and committed[-1] == last:
            self._number = last + 1
            return files.offset(last), False
        self._number = last
        if not last:
            self._stage.situation("a first batch was repeated")
        where = self._stage.killed.pop((files.path, last), "")
        if where:
            self._stage.situation(f"a batch was repeated after a kill {where}")
        return (files.offset(last - 1) if last else None), True

    async def _batch(self, start: str | None, end: str) -> None:
        reader, query, number = self._reader, self._query, self._number
        begin = start if start is not None else json.dumps(await self._python(reader.initialOffset))

        def plan() -> list[bytes]:
            found = reader.partitions(json.loads(begin), json.loads(end))
            return [pickle.dumps(part) for part in found] or [pickle.dumps(None)]

        partitions = await self._python(plan)
        self._step(BEHIND_PLANNING)
        writer = await self._python(lambda: pickle.dumps(self._writer()))
        stages = Stages(pickle.dumps(reader), partitions, writer)
        if self._stage.interrupt is not None and not self._stage.over and self._rng.random() < 0.1:
            await self._stage.interrupt()
        if self._dies():
            self._stage.situation("tasks went on behind a dead driver")
            self._stage.background(self._abandoned(stages), f"tasks of {self._name}")
            await self._pause()
            self._kill(BEHIND_PLANNING)
        messages = await self._executors.batch(self._identity, number, stages)
        self._noted(messages)
        self._step(BEHIND_TASKS)
        within = self._dies()
        if within:
            self._driver.process.crash_after(self._rng.randrange(150))
        try:
            await self._python(lambda: self._writer().commit([pickle.loads(one) for one in messages], number))
        except Died:
            self._stage.killed[self._files.path, number] = WITHIN_COMMIT
            raise
        if within:
            self._driver.process.crash_after(1 << 60)
        self._step(BEHIND_COMMIT)
        self._files.commit(number)
        self._stage.model.green(query, number, self._files.started(number), end)
        self._done += 1

    async def _abandoned(self, stages: Stages) -> None:
        with suppress(Exception):  # nobody is there to be told
            await self._executors.batch(self._identity, self._number, stages)

    def _writer(self) -> Any:
        return self._query.writer().streamWriter(schema=self._query.schema, overwrite=False)

    def _noted(self, messages: list[bytes]) -> None:
        parts = [pickle.loads(one) for one in messages]
        if any(part.skipped for part in parts):
            self._stage.situation("a repeated batch was skipped")
        if any(part.others for part in parts):
            self._stage.situation("rows went to several streams")
        if self._query.kind == "database":
            self._stage.situation("rows went to a table")

    # -- death --------------------------------------------------------------------------------------------

    def _dies(self) -> bool:
        return not self._stage.over and self._rng.random() < self._stage.pipeline.killing

    def _step(self, where: str) -> None:
        if self._dies():
            self._kill(where)

    def _kill(self, where: str) -> None:
        self._stage.killed[self._files.path, self._number] = where
        self._driver.process.crash()
        raise _Killed

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.random() * 0.5)

    def _now_ms(self) -> int:
        return self._stage.world.clock(self._driver.host).wall_us() // 1000

    async def _python(self, work: Callable[[], T]) -> T:
        return await self._driver.call(work)


__all__ = ["Outcome", "Run"]
