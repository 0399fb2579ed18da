"""ObjectCopy: the objects of a namespace for their mirror in another cluster.

Each pass compares the two sides as of one moment and makes the mirror the same: objects in the order in which they were
put, so that one is there only after those before it, then what was deleted or renamed. What the mirror has is the
position, so that a pass may be stopped anywhere and the next one goes on. Not here: the comparison
(`core/objects/index_difference.py`), streams (`replication/stream_copy.py`).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from buckram.core.objects.index_difference import IndexDifference, MirrorStep, Named, difference, parted_at, steps
from buckram.core.objects.rows import ObjectRow
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.metadata.mirrors import check_counterpart, mirror_of, mirrored_settings
from buckram.core.streams.names import OBJECTS_LOG, StreamName
from buckram.core.streams.records.positions import PositionMark, PositionVerdict
from buckram.errors import NoSuchStream, ObjectDamaged, SourceWentBack, StreamExists
from buckram.replication.lag import MirrorProgress, write_progress
from buckram.replication.positions import ComparedStream, choices, in_history, judged, source_mark, write_mark
from buckram.replication.sides import Side
from buckram.runtime.net.pace import Pace
from buckram.state.machine.settings import MachineSettings
from buckram.state.objects.mirror import MirrorObjects, ObservedObjects, Reusable
from buckram.state.objects.writing import Stored
from buckram.streams.shared.metadata import new_uid, retry_metadata
from buckram.streams.shared.namespaces import create_stream
from buckram.types import History

_LOOK_S = 1.0
_COMPARING_SHARE = 10
"""Divisor of the time that comparing may take, however many objects there are: at most one part in so many."""
_AT_ONCE = 16
_MOST_PASSES = 5
"""Maximum number of passes, without `follow`, that look for objects which changed while they were copied."""


class ObjectCopy:
    """Copies the objects of one namespace. `objects` and `bytes` count those that this instance has copied."""

    def __init__(self, source: Side, target: Side, namespace: str, pace: Pace, *, epoch: int = 0) -> None:
        """`epoch`: the number of promotions of the namespace."""
        self.name = StreamName(namespace, OBJECTS_LOG)
        self.objects = self.bytes = self.removed = 0
        self.lacking: IndexDifference | None = None
        """Differences between the two sides at the last comparison; None before it, and when the mirror is the same."""
        self.damaged: dict[str, ObjectDamaged] = {}
        """Objects of the last pass that cannot be read in the source."""
        self._changed = False
        """Objects changed in the source while the last pass copied them."""
        self._source, self._target, self._pace, self._epoch = source, target, pace, epoch
        self._place = ComparedStream(source, self.name)
        self._history = History()
        """History of the source's metadata when this run began."""
        self._mark: PositionMark | None = None
        """The position in the source's index that the mirror remembers."""
        self._uids = ("", "")
        """Uids of the mirror's index and of the source's."""

    async def run(self, *, follow: bool) -> None:
        """Copy what there is; with `follow` until this is cancelled. Does nothing if there never was an object.

        Raises SourceWentBack if the source has forgotten what the mirror has, ReplicationRefused, MirrorStream for a
        mirror that was promoted, ObjectDamaged when everything else was copied, and the errors of reading and writing,
        after which another run goes on.
        """
        while True:
            try:
                uid = (await self._source.streams.read(self.name)).head.uid
                break
            except NoSuchStream:
                if not follow:
                    return
                await asyncio.sleep(_LOOK_S)
        self._history = await retry_metadata(self._source.client.services.store.history)
        mirror = await self._prepare(uid)
        self._mark, self._uids = mirror.mark, (mirror.uid, uid)
        async with AsyncExitStack() as stack:
            there = await observed(stack, self._source, self.name.namespace)
            await self._compare(there, stack, mirror)
            here = await _kept(stack, self._target, self.name.namespace, uid, self._source.cluster)
            await self._passes(there, here, mirror.uid, follow=follow)

    async def _prepare(self, uid: str) -> Head:
        """Make the mirror's index, or check that the one that exists is one. Raises ReplicationRefused."""
        target = self._target
        try:
            found = (await target.streams.read(self.name)).head
        except NoSuchStream:
            source = (await self._source.streams.read(self.name)).head
            runtime = target.client.services.runtime
            made = Head(
                new_uid(runtime.rng.getrandbits(64)),
                runtime.clock.wall_us(),
                policy=mirrored_settings(source.policy, {}),
                snapshots=(),
                mirror=mirror_of(self._source.cluster, uid, self._epoch),
            )
            try:
                return (await create_stream(target.streams, self.name, made)).head
            except StreamExists:
                found = (await target.streams.read(self.name)).head
        check_counterpart(f"{self.name.namespace}/objects", found, self._source.cluster, uid)
        return found

    async def _compare(self, there: ObservedObjects, stack: AsyncExitStack, mirror: Head) -> None:
        """Raise SourceWentBack if the source's index does not have the record up to which it was copied."""
        verdict = PositionVerdict.UNKNOWN
        if mirror.mark is not None:
            verdict, _ = await judged(self._place, mirror.mark, mirror, self._history)
        if verdict is PositionVerdict.SAME and mirror.mark is not None:
            await self._remember(in_history(mirror.mark, self._history))
            return
        here = await observed(stack, self._target, self.name.namespace)
        found, _ = await compared(there, here, self._source)
        # Without a mark it is a mirror of an older release, which did not record the history of the source.
        forgotten = mirror.mark is not None or parted_at(await there.outline(), await here.outline()) is not None
        if forgotten and (found.gone or found.replaced):
            namespace = self.name.namespace
            raise SourceWentBack(
                f"{namespace}/objects",
                f"the source went back (now epoch {self._history.epoch}), and has not all objects any more that were "
                f"copied; {choices(namespace)}",
            )
        self._mark = None  # The mirror has nothing that the source has not; the next pass remembers its position.

    async def _remember(self, mark: PositionMark) -> None:
        if mark != self._mark:
            await write_mark(ComparedStream(self._target, self.name), *self._uids, mark)
            self._mark = mark

    async def _passes(self, there: ObservedObjects, here: MirrorObjects, mirror_uid: str, *, follow: bool) -> None:
        loop = asyncio.get_running_loop()
        same_at, passes = -1, 0
        while True:
            applied, began = there.applied, loop.time()
            if applied != same_at or there.ended:  # An ended one applies nothing any more; the pass raises its error.
                same = await self._pass(there, here, mirror_uid)
                # Changes since `applied` was read are compared once more, which finds no difference.
                same_at, passes = applied if same else -1, passes + 1
            if self.damaged:
                raise next(iter(self.damaged.values()))
            if not follow and (not self._changed or passes >= _MOST_PASSES):
                return
            await asyncio.sleep(max(_LOOK_S, (loop.time() - began) * _COMPARING_SHARE if same_at >= 0 else 0.0))

    async def _pass(self, there: ObservedObjects, here: MirrorObjects, mirror_uid: str) -> bool:
        """Make the mirror what the source is at this moment; return whether it was the same before."""
        found, version = await compared(there, here, self._source)
        if not found.empty or self._mark is None:
            # The mark is written first: the mirror must never have more than the position that it remembers.
            head = (await self._source.streams.read(self.name)).head
            await self._remember(await source_mark(self._place, head, there.applied, self._history))
        self.damaged, self._changed = {}, False
        self.lacking = None if found.empty else found
        if found.empty:
            return True
        now = self._source.now()
        copied = min((row.version - 1 for _, row in found.puts), default=version)
        await write_progress(self._target, mirror_uid, MirrorProgress(version, copied, now))
        present = found.reusable()
        for step in steps(found):
            taken = await self._take(there, here, step, present)
            await here.change(step, taken, max((row.version for _, row in step.puts), default=version))
            self.removed += len(step.gone)
        if not self.damaged and not self._changed:
            self.lacking = None
            await write_progress(self._target, mirror_uid, MirrorProgress(version, version, now))
        return False

    async def _take(
        self, there: ObservedObjects, here: MirrorObjects, step: MirrorStep, present: Reusable
    ) -> list[tuple[Named, Stored]]:
        """Make the bytes of a step's objects durable in the target; those that changed meanwhile are left out."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str, row: ObjectRow) -> Stored | None:
            async with room:
                await self._pace.take(row.size)
                try:
                    return await here.take(there, name, row, present)
                except ObjectDamaged as error:
                    self.damaged[name] = error
                    return None

        found = await asyncio.gather(*(one(name, row) for name, row in step.puts))
        self._changed = self._changed or any(
            stored is None and name not in self.damaged for (name, _), stored in zip(step.puts, found, strict=True)
        )
        taken = [(put, stored) for put, stored in zip(step.puts, found, strict=True) if stored is not None]
        self.objects += len(taken)
        self.bytes += sum(stored.size for _, stored in taken)
        return taken


async def compared(there: ObservedObjects, here: ObservedObjects, source: Side) -> tuple[IndexDifference, int]:
    """Return how objects differ from those of the source now, and the source's newest version."""
    loop = asyncio.get_running_loop()
    clocks = source.client.services.clocks
    await clocks.ensure()
    mirror, outline = await here.outline(), await there.outline()
    found = await loop.run_in_executor(None, difference, outline, mirror, clocks.moment().earliest)
    return found, outline.version


async def observed(stack: AsyncExitStack, side: Side, namespace: str) -> ObservedObjects:
    """Open the objects of one side for looking at them. Raises NoSuchStream if there never were any."""
    found = ObservedObjects(side.client, side.client.namespace(namespace), lambda closed: None)
    await found.start(process="replication", settings=MachineSettings(), policy={}, create=False)
    return await stack.enter_async_context(found)


async def _kept(stack: AsyncExitStack, side: Side, namespace: str, uid: str, source: str) -> MirrorObjects:
    found = MirrorObjects(side.client, side.client.namespace(namespace), lambda closed: None)
    process = f"replication from {source}"
    await found.start(process=process, settings=MachineSettings(), policy={}, create=False, mirror_of=uid)
    return await stack.enter_async_context(found)
