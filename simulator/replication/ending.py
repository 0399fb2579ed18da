"""The end of a life of replication: what was interrupted is completed, all is copied, and everything is found."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from buckram.core.streams.records.batch import Record
from buckram.metadata.records.security import SecurityStore
from simulator.engine.finish import DEADLINE_S, Finish
from simulator.replication.copiers import CopierActor
from simulator.replication.final_checks import FinalChecks
from simulator.replication.operators import OperatorActor
from simulator.replication.reading import read_all
from simulator.replication.stage import NAMESPACE, Actor, Place, Stage
from simulator.replication.writers import WriterActor

if TYPE_CHECKING:
    from buckram.cluster import Client

FINAL, COPIER, READER = "f1", "f2", "f3"
TRIES = 6


class Ending:
    """Ends one life."""

    def __init__(self, stage: Stage, operator: OperatorActor, writers: list[WriterActor]) -> None:
        self.stage, self.world, self.report = stage, stage.world, stage.world.report
        self._operator, self._writers = operator, writers
        self._finish = [Finish(place, place.faults) for place in stage.places]
        for finish, place in zip(self._finish, stage.places, strict=True):
            finish.deadline_s = 2 * place.plan.pace.deadline_s(DEADLINE_S, syncs=300, metadata_requests=60)
        self._checks = FinalChecks(stage)

    async def run(self, actors: list[asyncio.Task[None]]) -> None:
        self.stage.over = True
        self.stage.mortal.clear()
        for finish in self._finish:
            await finish.heal()
        within = max(self._finish, key=lambda one: one.deadline_s).within
        await within(self._finish[0].done(actors), "the actors")
        self.stage.mortal.clear()
        if self.report.violations:
            return
        await within(self._settle(), "settling who writes")
        await within(self._write(), "the last records")
        await within(self._copy(), "the last copy")
        await within(self._look(), "reading")
        self.stage.rules.judge_acks()
        self.stage.rules.judge_comparisons()

    async def _settle(self) -> None:
        """Complete a promotion that was interrupted, and reconcile the other side."""
        target = self._operator.promoting
        if target is not None:
            await self._operator.attempt("a promotion", partial(self._operator.promote, target, alone=False), last=True)
        if self.stage.unreconciled:
            await self._operator.attempt("a reconciling", self._operator.reconcile, last=True)

    async def _write(self) -> None:
        for writer in self._writers:
            writer.home = self.stage.primary
            for stream in self.stage.plan.streams:
                good = False
                for _ in range(TRIES):
                    good = await writer.session(stream, last=True)
                    if good:
                        break
                    await asyncio.sleep(1.0)
                self.report.check("ends", good, "{} cannot write {} in {}", writer.host, stream, writer.home.name)
            writer.stop()

    async def _copy(self) -> None:
        """Copy all that there is. What an operator has to decide is decided: the source is right."""
        copier, source = CopierActor(self.stage, COPIER), self.stage.primary
        copier.keep = copier.skip = True
        for _ in range(TRIES):
            if await copier.copy(source, follow=False, last=True):
                break
            for stream, trouble in list(copier.troubles.items()):
                if "created anew" in trouble or "no replication made" in trouble:
                    deleting = partial(self._operator.delete_old_mirror, source.other, stream)
                    await self._operator.attempt("deleting", deleting, last=True)
            await asyncio.sleep(1.0)
        self.report.check("ends", not copier.troubles, "it cannot be copied although all is well: {}", copier.troubles)
        copier.stop()

    async def _look(self) -> None:
        reader = Actor(self.stage, READER)
        found: dict[tuple[str, str], tuple[str, list[Record]]] = {}
        for place in self.stage.places:
            reader.start(place)
            await reader.inside(self._read(reader, place, found), "read")
        reader.stop()
        self._checks.run(found)

    async def _read(self, reader: Actor, place: Place, found: dict[tuple[str, str], tuple[str, list[Record]]]) -> None:
        client = await reader.client(place)
        for stream in await client.namespace(NAMESPACE).list():
            head, records = await read_all(client, stream)
            found[place.name, stream] = head.uid, records
            cursors = await client.namespace(NAMESPACE).cursors(stream)
            self._checks.beside[place.name, stream] = head.earliest, {one.name: one.offset for one in cursors}
        self._checks.grants[place.name] = await self._grants(client)
        await client.close()

    async def _grants(self, client: Client) -> str:
        return repr((await SecurityStore(client.services.store).acl()).of_namespace(NAMESPACE))


__all__ = ["Ending"]
