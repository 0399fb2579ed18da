"""The end of a life of pipelines: faults are healed, every query reads all that there is, and outputs are compared."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

from buckram.cluster import Client
from buckram.errors import NoSuchStream
from simulator.engine.faults import FaultRunner
from simulator.engine.finish import Finish
from simulator.pipeline.operating import Operator
from simulator.pipeline.queries import DATABASE, NAMESPACE, TABLE
from simulator.pipeline.rules import judge_output, judge_whole
from simulator.pipeline.stage import Stage

FINAL = "f1"


class Ending(Finish):
    """Ends one life."""

    def __init__(self, stage: Stage, faults: FaultRunner, operator: Operator) -> None:
        super().__init__(stage, faults)
        self.stage, self.operator = stage, operator
        self.deadline_s *= 4  # a drain is many batches, one after another

    async def run(self, actors: list[asyncio.Task[None]]) -> None:
        self.stage.over = True
        await self.heal()
        await self.within(self.done(actors), "the actors")
        for one in (self.operator, *self.operator.forks):
            await self.within(one.drain(), one.query.name)
        while left := [task for task in self.stage.tasks if not task.done()]:
            await self.within(self._wait(left), "what tasks left behind")
            if self.report.violations:
                return
        client = await self.world.client(FINAL)
        process = self.world.processes[FINAL]
        await self.within(self.world.join(process, self._look(client), "look"), "the last look")

    async def _wait(self, tasks: list[asyncio.Task[object]]) -> None:
        await asyncio.wait(tasks)

    async def _look(self, client: Client) -> None:
        model, current = self.stage.model, dict[str, str]()
        for name in sorted({one.name for one in model.inputs.values()}):
            current[name] = (await model.witness(client, name)).uid
        for found in model.outputs.values():
            targets = found.query.targets
            there = {target: await self._read(client, target) for target in targets}
            if not targets:
                there[""] = await self._table(client)
            judge_output(self.report, model, found, there)
        for one in (self.operator, *self.operator.forks):
            if not one.stopped:
                last = one.checkpoint.planned()[-1:]
                end = json.loads(one.checkpoint.offset(last[0])) if last else {}
                judge_whole(self.report, model, one.query, end, current)

    async def _read(self, client: Client, stream: str) -> list[bytes]:
        rows: list[bytes] = []
        with suppress(NoSuchStream):
            async with client.namespace(NAMESPACE).read(stream) as reader:
                async for batch in reader.batches():
                    rows += [record.value or b"" for record in batch.records()]
        return rows

    async def _table(self, client: Client) -> list[bytes]:
        name = DATABASE.partition("/")[2]
        async with client.namespace(NAMESPACE).database(name, create=False) as database:
            await database.leads_within(30.0)
            found = await database.execute(f"SELECT label, value FROM {TABLE} ORDER BY rowid")
            return [f"{label!s} {value!s}".encode() for label, value in found.rows]


__all__ = ["Ending"]
