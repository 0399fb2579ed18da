"""Replication: streams and objects of one or more namespaces, copied until they are all there, or continuously.

    work = await Replication.prepare(source, target, ["shop", "logs/web"], pace=Pace(None))
    await work.once()       or       await work.follow()

Each stream is copied by itself: one that cannot be copied says why and is tried again, the others go on. Not here: one
stream (`replication/stream_copy.py`), objects (`replication/object_copy.py`), when a replication is refused
(`core/streams/replication_links.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from buckram.core.backoff import REPLICATION, Delays
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.metadata.mirrors import mirrored_settings
from buckram.core.streams.names import OBJECTS_LOG, StreamName, check_name, stream_name
from buckram.errors import (
    AccessRefused,
    BuckramError,
    InvalidArgument,
    MirrorStream,
    NoSuchNamespace,
    NoSuchStream,
    ReplicationRefused,
    SourceWentBack,
    StoreWentBack,
    Unauthorized,
)
from buckram.replication.divergent_data import begin_anew, go_on_with_objects
from buckram.replication.lag import note_trouble
from buckram.replication.linking import check_link, check_sides, link_sides, make_namespace
from buckram.replication.mirror_metadata import mirror_grants
from buckram.replication.object_copy import ObjectCopy
from buckram.replication.sides import Side, stream_names
from buckram.replication.stream_copy import StreamCopy
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope

_AT_ONCE = 8
"""Maximum number of streams that `once` copies at the same time."""
_LOOK_S = 2.0
"""Interval at which `follow` looks for new streams, changed settings of namespaces, and a promotion, seconds."""
_log = logging.getLogger("buckram.replication")


@dataclass(slots=True)
class Copying:
    """One stream of a replication."""

    copy: StreamCopy
    first: int | None = None
    """The offset at which this run began; None before it did."""
    trouble: str = ""
    """Reason why it cannot be copied now; empty while it can."""
    kept: str = ""
    """Stream of the target that keeps what only the mirror had, if the source went back; else empty."""
    done: bool = False
    """True if everything was copied: by `once`, or up to the end of a stream that was ended."""

    def as_json(self) -> dict[str, object]:
        copy = self.copy
        shown: dict[str, object] = {
            "stream": str(copy.name),
            "records": copy.records,
            "bytes": copy.bytes,
            "first_offset": copy.copied - copy.records if copy.records else None,
            "next_offset": copy.copied,
        }
        shown |= {"kept": self.kept} if self.kept else {}
        return {**shown, "trouble": self.trouble} if self.trouble else shown


@dataclass(slots=True)
class CopyingObjects:
    """The objects of one namespace of a replication."""

    copy: ObjectCopy
    trouble: str = ""
    """Reason why not all objects can be copied now; empty while they can."""
    kept: str = ""
    """Namespace of the target that keeps what only the mirror had, if the source went back; else empty."""
    done: bool = False
    """True if everything was copied by `once`."""

    def as_json(self) -> dict[str, object]:
        copy = self.copy
        shown: dict[str, object] = {
            "namespace": copy.name.namespace,
            "objects": copy.objects,
            "bytes": copy.bytes,
            "removed": copy.removed,
        }
        shown |= {"kept": self.kept} if self.kept else {}
        return {**shown, "trouble": self.trouble} if self.trouble else shown


class Replication:
    """The copying of chosen namespaces and streams; `prepare` makes it."""

    def __init__(
        self,
        source: Side,
        target: Side,
        chosen: Mapping[str, frozenset[str]],
        epochs: Mapping[str, int],
        pace: Pace,
        skip_truncated: bool,
        keep_diverged: bool = False,
    ) -> None:
        self.streams: dict[StreamName, Copying] = {}
        """Streams that are or were copied."""
        self.objects = {
            namespace: CopyingObjects(ObjectCopy(source, target, namespace, pace, epoch=epochs[namespace]))
            for namespace, streams in chosen.items()
            if not streams
        }
        """Copies of objects, one for each namespace that is copied as a whole."""
        self._source, self._target, self._chosen, self._epochs = source, target, chosen, epochs
        self._pace, self._skip, self._keep = pace, skip_truncated, keep_diverged
        self._policies: dict[str, object] = {}
        self._without_grants: dict[str, str] = {}
        """Namespaces whose grants this process may not read or change, and why."""

    @classmethod
    async def prepare(
        cls,
        source: Side,
        target: Side,
        places: Sequence[str],
        *,
        pace: Pace,
        skip_truncated: bool = False,
        keep_diverged: bool = False,
    ) -> Replication:
        """Check both sides, and make the target's namespaces. `places`: NAMESPACE, or NAMESPACE/STREAM.

        `keep_diverged`: if the source went back, what only the mirror has is kept aside and the mirror is begun anew.
        Raises NoSuchNamespace and NoSuchStream of the source, and ReplicationRefused, also for a target that has
        streams of its own there.
        """
        chosen = _chosen(places)
        epochs: dict[str, int] = {}
        for namespace, streams in chosen.items():
            await source.namespaces.get(namespace)
            for stream in streams:
                if stream == OBJECTS_LOG:
                    raise ReplicationRefused(
                        f"{namespace}/{stream}", f"the index of objects goes with them: name the namespace, {namespace}"
                    )
                check_usable(f"{namespace}/{stream}", (await source.streams.read(StreamName(namespace, stream))).head)
            await check_sides(source, target, namespace, streams)
        for namespace, streams in chosen.items():
            epochs[namespace] = await link_sides(source, target, namespace, streams)
        made = cls(source, target, chosen, epochs, pace, skip_truncated, keep_diverged)
        await made._mirror_namespaces()
        return made

    async def once(self) -> None:
        """Copy what there is. `streams` has what could not be copied, with the reason."""
        await self._look()
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(copying: Copying | CopyingObjects) -> None:
            async with room:
                try:
                    await self._run(copying, follow=False)
                    copying.done = True
                except NoSuchStream:
                    copying.done = True  # It was deleted meanwhile.
                except BuckramError as error:
                    await self._note(copying, error)

        async with TaskScope("replication") as scope:
            works: list[Copying | CopyingObjects] = [*self.streams.values(), *self.objects.values()]
            tasks = [scope.spawn(one(copying), str(copying.copy.name)) for copying in works]
            for task in tasks:
                await task

    async def follow(self) -> None:
        """Copy until this is cancelled.

        Raises ReplicationRefused when the target was promoted, StoreWentBack when the metadata of a side were restored:
        another run then compares what was copied.
        """
        async with TaskScope("replication") as scope:
            for namespace, objects in self.objects.items():
                scope.spawn(self._keep_on(objects), f"objects of {namespace}")
            while True:
                try:
                    for copying in await self._look():
                        scope.spawn(self._keep_on(copying), str(copying.copy.name))
                    await self._check_sides()
                    await self._mirror_namespaces()
                except (ReplicationRefused, NoSuchNamespace, StoreWentBack):
                    raise
                except BuckramError as error:
                    _log.warning("a cluster cannot be read now: %s", error)
                await asyncio.sleep(_LOOK_S)

    async def _keep_on(self, copying: Copying | CopyingObjects) -> None:
        """Copy one stream or objects, again and again, until the stream is ended or deleted in the source."""
        delays = Delays(REPLICATION)
        while True:
            before = copying.copy.bytes
            try:
                await self._run(copying, follow=True)
                copying.done, copying.trouble = True, ""
                return
            except NoSuchStream:
                if isinstance(copying, Copying):
                    copying.done = True
                    del self.streams[copying.copy.name]  # One of this name may be made again.
                    return
                await asyncio.sleep(delays.take())  # The index was deleted, and may be made again.
            except BuckramError as error:
                if str(error) != copying.trouble:
                    _log.warning("%s: %s", copying.copy.name, error)
                await self._note(copying, error)
                if copying.copy.bytes > before:
                    delays.reset()
                final = isinstance(error, ReplicationRefused | MirrorStream)
                await asyncio.sleep(REPLICATION.most_s if final else delays.take())

    async def _run(self, copying: Copying | CopyingObjects, *, follow: bool) -> None:
        try:
            await copying.copy.run(follow=follow)
        except SourceWentBack as error:
            if not self._keep:
                raise
            copy, source, target = copying.copy, self._source, self._target
            if isinstance(copy, StreamCopy):
                kept = await begin_anew(source, target, copy.name, error, self._pace)
            else:
                kept = await go_on_with_objects(source, target, copy.name.namespace, self._pace)
            copying.kept = kept
            _log.warning(
                "%s: the source went back; what only the mirror had is kept in %s", copy.name, kept or "nothing"
            )
            await copy.run(follow=follow)

    async def _note(self, copying: Copying | CopyingObjects, error: BuckramError) -> None:
        """Note why it cannot be copied now, and write down what does not end by itself, for `replicate status`."""
        if str(error) == copying.trouble:
            return
        copying.trouble = str(error)
        if isinstance(error, ReplicationRefused):
            with suppress(BuckramError):
                await note_trouble(self._target, copying.copy.name, str(error))

    async def _look(self) -> list[Copying]:
        """Find the streams to be copied that were not known before."""
        found: list[Copying] = []
        for namespace, chosen in self._chosen.items():
            async for name in stream_names(self._source, namespace):
                if name in self.streams or name.stream == OBJECTS_LOG or (chosen and name.stream not in chosen):
                    continue
                copy = StreamCopy(
                    self._source,
                    self._target,
                    name,
                    self._pace,
                    epoch=self._epochs[namespace],
                    skip_truncated=self._skip,
                )
                self.streams[name] = Copying(copy)
                found.append(self.streams[name])
        return found

    async def _check_sides(self) -> None:
        """Raise ReplicationRefused if one side was promoted since this began; the other one is fenced then."""
        for namespace in self._chosen:
            await check_link(self._source, self._target, namespace)

    async def _mirror_namespaces(self) -> None:
        """Have the target's namespaces have the settings of the source's, as far as they are not about one cluster, and
        the grants."""
        for namespace, streams in self._chosen.items():
            if not streams:
                await self._mirror_grants(namespace)
            policy = (await self._source.namespaces.get(namespace)).policy
            if self._policies.get(namespace) == policy:
                continue
            await make_namespace(self._target, namespace, policy)
            present = (await self._target.namespaces.get(namespace)).policy
            wanted = mirrored_settings(policy, present)
            changes = {name: wanted.get(name) for name in {*wanted, *present} if wanted.get(name) != present.get(name)}
            if changes:
                await self._target.namespaces.set(namespace, **changes)
            self._policies[namespace] = policy

    async def _mirror_grants(self, namespace: str) -> None:
        try:
            await mirror_grants(self._source, self._target, namespace)
        except (AccessRefused, Unauthorized, InvalidArgument) as error:
            if namespace not in self._without_grants:
                self._without_grants[namespace] = str(error)
                why = "" if isinstance(error, InvalidArgument) else "; only who opens both stores can"
                _log.warning("the grants of %s are not copied%s: %s", namespace, why, error)


def _chosen(places: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the chosen streams of each namespace; none: all of them. Raises InvalidArgument."""
    if not places:
        raise InvalidArgument("name what to replicate: NAMESPACE, or NAMESPACE/STREAM")
    chosen: dict[str, frozenset[str]] = {}
    whole: set[str] = set()
    for place in places:
        if "/" in place:
            name = stream_name(place)
            chosen[name.namespace] = chosen.get(name.namespace, frozenset()) | {name.stream}
        else:
            whole.add(check_name("namespace", place))
    return chosen | dict.fromkeys(sorted(whole), frozenset[str]())
