"""One life of archives: bookies, clients, the place and the faults of a plan in one simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import fsspec

from buckram.streams.maintain.history import segment_copy, table
from buckram.streams.read import history_reader
from buckram.streams.shared import locations
from simulator.archives.bringing import Importer, Publisher
from simulator.archives.ending import Ending
from simulator.archives.forking import Forker
from simulator.archives.moving import Compactor, Exporter, Offloader
from simulator.archives.names import INVARIANTS, SITUATIONS
from simulator.archives.place import SCHEME, ObjectFace, Place, PosixFace
from simulator.archives.plan import LIFE_S, ArchivesPlan
from simulator.archives.reading import ReaderActor
from simulator.archives.removing import Deleter, JanitorActor, Truncator
from simulator.archives.stage import Actor, Stage
from simulator.archives.writing import WriterActor
from simulator.engine.faults import FaultRunner
from simulator.engine.lives import watch_tasks
from simulator.engine.planned import PlannedLife
from simulator.engine.planting import patched
from simulator.engine.small_pages import small_pages
from simulator.engine.trace import Echo

WITHIN_S = 3.0
"""Time within which the place must answer, seconds; some lives have one that takes longer."""
_KINDS: dict[str, tuple[type[Actor], str]] = {
    "offloader": (Offloader, "o1"),
    "exporter": (Exporter, "x1"),
    "importer": (Importer, "i1"),
    "forker": (Forker, "k1"),
    "truncator": (Truncator, "t1"),
    "compactor": (Compactor, "c1"),
    "deleter": (Deleter, "d1"),
    "janitor": (JanitorActor, "j1"),
    "publisher": (Publisher, "p1"),
}


class Life(PlannedLife[ArchivesPlan]):
    """One life of archives."""

    invariants, situations = INVARIANTS, SITUATIONS

    def __init__(self, plan: ArchivesPlan, echo: Echo | None = None) -> None:
        super().__init__(plan, f"archives {plan.seed}", echo)
        self.stage = Stage(self.world, plan)
        self.faults = FaultRunner(self.stage)

    def watched(self) -> Iterable[AbstractContextManager[Any]]:
        plan = self.plan
        return small_pages(plan.small_pages), placed(self.stage.place, plan.part_entries), watch_tasks(self.world)

    async def begin(self) -> None:
        setup = Actor(self.stage, "s1")
        await setup.up()
        await setup.inside(self._create(setup), "create")
        self.awaited = [self.start(actor.run(), actor.host) for actor in self._actors()]

    async def _create(self, setup: Actor) -> None:
        for stream in self.plan.streams:
            await setup.ns.create(stream, **self.plan.policy)
        assert setup.client is not None
        await setup.client.close()

    def _actors(self) -> list[Actor]:
        plan, stage = self.plan, self.stage
        actors: list[Actor] = [WriterActor(stage, "w1"), WriterActor(stage, "w2")]
        actors += [ReaderActor(stage, f"r{n + 1}") for n in range(plan.readers)]
        actors += [kind(stage, host) for kind, host in (_KINDS[name] for name in plan.actors)]
        if plan.two_exporters and "exporter" in plan.actors:
            actors.append(Exporter(stage, "x2"))
        return actors

    async def be_busy(self) -> None:
        await asyncio.wait(self.awaited, timeout=LIFE_S)

    async def end(self) -> None:
        await Ending(self.stage, self.faults, self.awaited).run()

    @property
    def acked(self) -> int:
        return self.stage.model.acked


@contextmanager
def placed(place: Place, part_entries: int) -> Iterator[None]:
    """Have history at this place and nowhere else, in small parts, without a table around it."""
    fsspec.register_implementation(SCHEME, ObjectFace, clobber=True)
    ObjectFace.current = place
    changes = (
        (locations, "FILES", PosixFace(place)),
        (locations, "WITHIN_S", WITHIN_S),
        (segment_copy, "WITHIN_S", WITHIN_S),
        (segment_copy, "PART_ENTRIES", part_entries),
        (history_reader, "_CHUNK_BYTES", 300),
        (history_reader, "_BATCHES", 2),
        (table, "find_spec", lambda name: None),
    )
    with patched(*changes):
        yield


__all__ = ["Life"]
