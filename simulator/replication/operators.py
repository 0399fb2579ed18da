"""Operators: promotions, with and without the other side; reconciling; restores of backups; truncation; streams anew.

What an operator does is repeated until it has succeeded, since its process may be killed at any change. Not here:
copying (`copiers.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from buckram.core.security.acl import Acl, Grant
from buckram.core.streams.metadata.mirrors import MIRROR
from buckram.errors import BuckramError, NoSuchStream, ReplicationRefused, StreamExists
from buckram.metadata.maintain.acceptance import accept
from buckram.metadata.maintain.backup import set_history
from buckram.metadata.records.security import SecurityStore
from buckram.metadata.tree.store import TreeStore
from buckram.replication.promotion import promote
from buckram.replication.reconciling import StreamDifference, differences, reconcile
from buckram.replication.sides import Side, side_of
from buckram.streams.maintain.segment_list_repair import LackingRecords, begin_after_deleted
from buckram.streams.shared.metadata import StreamStore
from simulator.engine.world import Died
from simulator.replication.heads import HeadWatch
from simulator.replication.plan import LIFE_S
from simulator.replication.stage import NAMESPACE, Actor, Backup, Place, Stage

REACHED_S = 5.0
"""Time within which the other side of a promotion answers, if it is reached at all."""
MIRRORED_S = 15.0
"""Time for which an operator waits for the first records of a mirror."""
TRY_S = 60.0
Work = Callable[[], Awaitable[None]]


class OperatorActor(Actor):
    """The operator of both clusters."""

    def __init__(self, stage: Stage, host: str, watches: dict[str, HeadWatch]) -> None:
        super().__init__(stage, host)
        self._watches = watches
        self.promoting: Place | None = None
        """The side whose promotion has begun, and is not known to be done."""
        self.gone: list[str] = []
        """Uids of streams that were deleted and created anew."""

    async def run(self) -> None:
        for act in self.plan.acts:
            await self.nap(2 * self.plan.pause_s)
            if self.stage.over or self.world.loop.time() > LIFE_S:
                break
            if self.rng.random() < 0.5:
                self.take_backup()
            await self.act(act)
        await self.nap(4 * self.plan.pause_s)
        self.stop()

    async def act(self, act: str) -> None:
        primary = self.stage.primary
        self.note(f"does: {act}")
        if act.startswith("promote"):
            if self.stage.unreconciled:
                await self.until_done("a reconciling", self.reconcile)
            if act == "promote without force":
                await self._mirrored(primary.other)
                await self.attempt("a promotion", self._promote_without_force)
                return
            alone = act == "promote alone"
            if await self._mirrored(primary.other):
                await self.until_done("a promotion", lambda: self.promote(primary.other, alone=alone))
                if self.stage.unreconciled and self.rng.random() < 0.7:
                    await self.nap(2 * self.plan.pause_s)
                    await self.until_done("a reconciling", self.reconcile)
        elif act == "restore":
            await self._restore(primary)
        elif act == "truncate":
            await self.attempt("a truncation", lambda: self._truncate(primary))
        elif act == "create anew":
            await self.until_done("creating anew", lambda: self._create_anew(primary))
        elif act == "grant":
            await self.attempt("a grant", lambda: self._grant(primary))

    async def _mirrored(self, place: Place) -> bool:
        """Wait for a while until there is a mirror of something. Return whether there is."""
        until = self.world.loop.time() + MIRRORED_S
        while self.world.loop.time() < until and not self.stage.over:
            heads = [head for (where, _), head in self.truth.present.items() if where == place.name]
            if any(head.mirror is not None and head.mirror.state == MIRROR and head.tail for head in heads):
                return True
            await self.nap(0.5)
        return self.rules.state_of(place.name) == MIRROR

    async def until_done(self, what: str, work: Work) -> None:
        while not self.stage.over:
            if await self.attempt(what, work):
                return
            await self.nap(1.0)

    async def attempt(self, what: str, work: Work, *, last: bool = False) -> bool:
        """Do it in a new process. Return whether it was done."""
        self.start(*self.stage.places)
        if not last:
            self.maybe_kill(3000, 30)
        try:
            async with asyncio.timeout(TRY_S):
                await self.inside(work(), what)  # type: ignore[arg-type]  # coroutines only
            return True
        except Died:
            self.report.situation(f"{what} was killed")
            self.note("died")
        except (BuckramError, TimeoutError) as error:
            self.note(f"{what}: {error!r}")
            if last:
                raise
        finally:
            self.stop()
        return False

    # -- promotions: code of the process --------------------------------------------------------------------

    async def _reach(self, place: Place) -> Side | None:
        try:
            async with asyncio.timeout(REACHED_S):
                return await side_of(await self.client(place))
        except (BuckramError, TimeoutError) as error:
            self.note(f"{place.name} is not reached: {error!r}")
            return None

    async def promote(self, target: Place, *, alone: bool) -> None:
        self.promoting = target
        here = await side_of(await self.client(target))
        there = None if alone else await self._reach(target.other)
        target.backup = target.other.backup = None  # Backups from before a change of sides are of no use.
        found = await promote(here, NAMESPACE, there, force=True)
        self.rules.promoted(target.name, found)
        self.report.situation(f"a promotion {'without' if there is None else 'with'} the other side")
        if found.epoch > 1:
            self.report.situation("the sides changed back")
        self.stage.primary, self.stage.unreconciled, self.promoting = target, True, None

    async def _promote_without_force(self) -> None:
        target = self.stage.primary.other
        before = self.rules.state_of(target.name)
        here, there = await side_of(await self.client(target)), await side_of(await self.client(target.other))
        try:
            await promote(here, NAMESPACE, there)
        except ReplicationRefused as error:
            self.report.situation("a promotion without force was refused")
            self.note(f"refused: {error}")
            self.report.check("refused", True)
        else:
            self.report.check(
                "refused", before == "promoted", "{} was promoted without force, it was {}", target.name, before
            )

    async def reconcile(self) -> None:
        stage = self.stage
        old, new = stage.primary.other, stage.primary
        one, two = await side_of(await self.client(old)), await side_of(await self.client(new))
        try:
            found = await differences(one, two, NAMESPACE)
            self._differing(found)
            await reconcile(one, two, NAMESPACE, found)
        except ReplicationRefused as error:
            if "reconciled already" not in str(error):
                raise
        stage.unreconciled = False

    def _differing(self, found: list[StreamDifference]) -> None:
        if any(one.records for one in found):
            self.report.situation("records were kept aside")

    # -- other acts -----------------------------------------------------------------------------------------

    def take_backup(self) -> None:
        place = self.stage.primary
        if place.backup is None and "restore" in self.plan.acts:
            place.backup = Backup(place.world.metadata.snapshot(), self.world.loop.time())
            self.note(f"backs up {place.name}")

    async def _restore(self, place: Place) -> None:
        """Restore the metadata of the side that writes from a backup, and accept that."""
        await self._mirrored(place.other)
        self.take_backup()
        backup, rng = place.backup, random.Random(f"restore {self.plan.seed} {self.world.loop.time()}")
        assert backup is not None
        await self.nap(8.0)
        world = place.world
        place.backup = None
        place.generation += 1
        world.restore_metadata(backup.snapshot)
        self.truth.went_back(place.name, backup.at_s)
        self._watches[place.name].restored(world.metadata.snapshot().keys)
        self.report.situation("a source went back")
        while True:
            try:
                setup = world.store(world.loop.world, rng)
                await set_history(setup, replace(await setup.history(), accepted=False))
                lacking: list[LackingRecords] = []

                async def repair(setup: TreeStore = setup, lacking: list[LackingRecords] = lacking) -> None:
                    lacking.extend(await begin_after_deleted(StreamStore(setup)))

                await accept(setup, rng, (), repair)
                for one in lacking:
                    self.truth.lost(place.name, one.stream.partition("/")[2], one.first, one.end)
                return
            except BuckramError as error:
                self.note(f"cannot accept: {error!r}")
                await asyncio.sleep(1.0)

    async def _truncate(self, place: Place) -> None:
        ns = (await self.client(place)).namespace(NAMESPACE)
        stream = self.rng.choice(self.plan.streams)
        end = (await ns.info(stream)).end
        before = self.rng.choice((end, end, end // 2))
        facts = self.truth.present.get((place.name, stream))
        if facts is not None and facts.uid in self.truth.streams:
            known = self.truth.streams[facts.uid]
            known.truncated = max(known.truncated, before)
        await ns.truncate(stream, before=before)
        await ns.move_cursor(stream, "reader", before)

    async def _create_anew(self, place: Place) -> None:
        """Delete a stream and create another one of its name; later the mirror of the first one goes as well."""
        ns = (await self.client(place)).namespace(NAMESPACE)
        stream = self.plan.streams[-1]
        head = self.truth.present.get((place.name, stream))
        if head is not None and head.uid not in self.gone and not self.gone:
            self.gone += self.truth.uids(head.uid)
            self.report.situation("a stream was deleted and created anew")
            for uid in self.gone:
                self.truth.streams[uid].deleted = True
        if head is not None and head.uid in self.gone:
            with suppress(NoSuchStream):
                await ns.delete(stream)
        with suppress(StreamExists):
            await ns.create(stream)

    async def delete_old_mirror(self, place: Place, stream: str) -> None:
        """Delete a mirror of a stream that was deleted in its source."""
        await (await self.client(place)).namespace(NAMESPACE).delete(stream)

    async def _grant(self, place: Place) -> None:
        store = SecurityStore((await self.client(place)).services.store)
        grant = Grant(self.rng.choice(("ann", "bob")), NAMESPACE, frozenset({self.rng.choice(("read", "append"))}))
        revoked = self.rng.random() < 0.4

        def change(acl: Acl) -> Acl:
            own = acl.of_namespace(NAMESPACE)
            grants = () if revoked else tuple(dict.fromkeys((*own.grants, grant)))
            return acl.with_namespace(NAMESPACE, replace(own, grants=grants))

        await store.change_acl(change)


__all__ = ["OperatorActor"]
