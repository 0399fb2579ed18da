"""The end of a life of objects: faults are healed, space returns, all that is live is read, time passes, and a new
process reads and sweeps all once more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from buckram.cluster import Client
from buckram.core.streams.names import OWNER_UID
from buckram.errors import NoSuchObject
from simulator.engine.faults import FaultRunner
from simulator.engine.finish import Finish
from simulator.objects.beside import delete_beside
from simulator.objects.putters import PutterActor
from simulator.objects.rules import NAMESPACE
from simulator.objects.stage import Stage

FINAL = "f1"
"""The host that looks at everything at the end."""
_MINUTE, _HOUR, _DAY = 60 * 1_000_000, 3600 * 1_000_000, 86_400 * 1_000_000
_LOOK_S = 20.0
"""Time after which each bookie has looked at its clock again, seconds."""
_GROUPS = ("g0", "g1")


class Ending(Finish):
    """Ends one life of objects."""

    def __init__(self, stage: Stage, faults: FaultRunner) -> None:
        super().__init__(stage, faults)
        self.stage, self.rules = stage, stage.rules

    async def run(self, putters: Sequence[PutterActor], tasks: list[asyncio.Task[None]]) -> None:
        self.stage.over = True
        await self.heal()
        await self.within(self._acted(putters), "the putters")
        await self.within(self._open(putters), "opening")
        await self._space(putters, "while putters live")
        if not self.report.violations:
            await self.within(self._read(putters), "reading")
            await self._let_expire(putters)
        self.stage.finished = True
        await self.within(self.done(tasks), "closing")
        left = self.rules.reference.writers
        self.report.check("space", not left, "handles are closed, and ledgers {} are open in the index", left)
        if not self.report.violations:
            await self.within(self._look_anew(), "a new process")
        if self.stage.beside and not self.report.violations:
            await self.within(delete_beside(self.stage), "deleting the store beside")
            self._check_beside()
        self.rules.judge_calls()
        self._count()

    async def _acted(self, putters: Sequence[PutterActor]) -> None:
        await asyncio.gather(*[putter.done.wait() for putter in putters])

    async def _open(self, putters: Sequence[PutterActor]) -> None:
        while len(self.stage.living()) < len(putters):  # noqa: ASYNC110 - handles come and go with processes
            await asyncio.sleep(0.05)

    # -- space ----------------------------------------------------------------------------------------------

    async def _space(self, putters: Sequence[PutterActor], when: str) -> None:
        """Check that sweeps leave only ledgers in use, within the deadline."""
        pause = 0.2
        try:
            async with asyncio.timeout(self.deadline_s):
                while not self._swept():
                    for putter in putters:
                        if putter.host in self.stage.living():
                            await self.world.join(self.world.processes[putter.host], putter.sweep(), "sweep")
                    await asyncio.sleep(pause)
                    pause = min(1.5 * pause, 8.0)
        except TimeoutError:
            pass
        self._check_space(when)

    def _swept(self) -> bool:
        return set(self.rules.ledgers) == set(self.rules.reference.extents())

    def _check_space(self, when: str) -> None:
        there, used = set(self.rules.ledgers), self.rules.reference.extents()
        self.report.check(
            "space",
            self._swept(),
            "{}: ledgers {} are left that nothing uses; {} are used and not there",
            *(when, sorted(there - set(used)), sorted(set(used) - there)),
        )

    # -- reading --------------------------------------------------------------------------------------------

    async def _read(self, putters: Sequence[PutterActor]) -> None:
        """Have each process list and read all objects; it may remember readers and entries."""
        for putter in putters:
            await self.world.join(self.world.processes[putter.host], self._read_all(putter), "read all")

    async def _read_all(self, putter: PutterActor) -> None:
        for group in _GROUPS:
            await putter.calls.list(group)
            for name in [name for name in self.rules.reference.rows if name.startswith(f"{group}/")]:
                await putter.calls.info(name)
                await putter.calls.get(name, 0, None)

    # -- time -----------------------------------------------------------------------------------------------

    async def _let_expire(self, putters: Sequence[PutterActor]) -> None:
        """Let clocks be right for more than an hour, then the time pass after which all must have expired."""
        wrong = bool(self.report.reached["clocks jumped"])
        for passed in (*([12 * _MINUTE] * 6 if wrong else []), 3 * _HOUR, 8 * _DAY):
            self.world.passed.us += passed
            await asyncio.sleep(_LOOK_S if wrong else 2.0)
        await self.within(self._expired(putters), "expiring")
        await self._space(putters, "when all has expired")

    async def _expired(self, putters: Sequence[PutterActor]) -> None:
        reference, pause = self.rules.reference, 0.5
        while reference.uploads or any(row.due_us is not None for row in reference.rows.values()):
            for putter in putters:
                await self.world.join(self.world.processes[putter.host], putter.sweep(), "sweep")
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, 8.0)
        for name in self.rules.due:
            host = self.stage.living()[0]
            gone = await self.world.join(self.world.processes[host], self._is_gone(host, name), "look")
            self.report.check("late", gone, "{} is there after its time", name)

    async def _is_gone(self, host: str, name: str) -> bool:
        try:
            await self.stage.open[host].info(name)
        except NoSuchObject:
            return True
        return False

    # -- a new process --------------------------------------------------------------------------------------

    async def _look_anew(self) -> None:
        client = await self.world.client(FINAL)
        await self.world.join(self.world.processes[FINAL], self._look_with(client), "look")

    async def _look_with(self, client: Client) -> None:
        putter = PutterActor(self.stage, FINAL)
        try:
            async with client.objects(NAMESPACE, process=FINAL, settings=self.stage.objects.settings) as handle:
                putter.calls.handle = handle
                await self._read_all(putter)
                async with asyncio.timeout(self.deadline_s / 2):
                    while not self._swept():
                        await putter.sweep()
                        await asyncio.sleep(0.5)
        except TimeoutError:
            pass
        finally:
            await client.close()
        self._check_space("after all processes")

    def _check_beside(self) -> None:
        """Check that nothing is left of the store that was deleted: no ledger that was made for it, and no key."""
        uid, world = self.stage.beside, self.world
        ledgers = [
            ledger
            for ledger, facts in world.judge.facts.ledgers.items()
            if facts.metadata is not None
            and not facts.deleted
            and facts.metadata.custom_metadata.get(OWNER_UID) == uid.encode()
        ]
        keys = [key for key in world.metadata.snapshot().keys if f"/{uid}/" in key]
        self.report.check("deleted", not (ledgers or keys), "ledgers {} and keys {} are left", ledgers, keys)

    def _count(self) -> None:
        """Count what only shows at the end."""
        labels = self.rules.reference.labels
        if any(one.call[2] in labels for one in self.rules.pending("put")):
            self.report.situation("a put without an answer took effect")


__all__ = ["Ending"]
