"""Reconciling: the side that a promotion replaced becomes a mirror, and what only it has is kept aside.

    found = await differences(old, new, namespace)
    await reconcile(old, new, namespace, found)

The records that only the old side has are copied, at their offsets, into a stream of their own in the old cluster,
NAME.kept-EPOCH, and objects into the namespace NAMESPACE.kept-EPOCH; only when they are there is what they were copied
from deleted. Then a replication in the other direction makes it
anew, as a mirror. Not here: promoting (`replication/promotion.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from buckram.core.streams.head import Head, Mirror
from buckram.core.streams.links import Link, is_superseded
from buckram.core.streams.mirrors import MIRROR, PROMOTED, SUPERSEDED
from buckram.core.streams.names import OBJECTS_LOG, StreamName, check_name
from buckram.errors import NoSuchStream, ReplicationRefused
from buckram.net.pace import Pace
from buckram.replication.fencing import hand_over, supersede
from buckram.replication.object_differences import KeptObjects, keep_objects, kept_objects
from buckram.replication.sides import Side, put_link, read_link, stream_names
from buckram.replication.stream_copy import StreamCopy
from buckram.streams.maintain.delete import delete_stream

_KEPT = ".kept-"


@dataclass(frozen=True, slots=True)
class Difference:
    """What the old side has of one stream, and the new one has not: the records `first` to `end` - 1."""

    stream: str
    first: int
    end: int
    kept: str
    """The stream that they are kept in; empty if there are none."""

    @property
    def records(self) -> int:
        return self.end - self.first

    def as_json(self) -> dict[str, Any]:
        last = self.end - 1 if self.records else None
        first = self.first if self.records else None
        return {
            "stream": self.stream,
            "records": self.records,
            "first_offset": first,
            "last_offset": last,
            "kept": self.kept or None,
        }


async def differences(old: Side, new: Side, namespace: str) -> list[Difference]:
    """Fence the old side if it is not, and say which records only it has. Nothing else is changed.

    Raises ReplicationRefused unless `new` was promoted in the place of `old`, RecoveryFailed, MetadataUnavailable.
    """
    here, there = await read_link(old, namespace), await read_link(new, namespace)
    if there is None or there.state != PROMOTED or there.cluster != old.cluster:
        raise ReplicationRefused(
            namespace, f"cluster {new.cluster} was not promoted in place of cluster {old.cluster}: nothing to reconcile"
        )
    if is_superseded(here, there, old.cluster):
        await supersede(old, namespace, _superseded(new, there))
        here = await read_link(old, namespace)
    if here is None or here.state != SUPERSEDED or here.epoch != there.epoch:
        raise ReplicationRefused(namespace, f"cluster {old.cluster} was reconciled already: nothing is left to do")
    await supersede(old, namespace, _superseded(new, there))  # Streams that were made since it was fenced, too.
    found: list[Difference] = []
    async for name in stream_names(old, namespace):
        if not there.has(name.stream) or name.stream == OBJECTS_LOG:
            continue
        try:
            head = (await old.streams.read(name)).head
        except NoSuchStream:
            continue
        if head.mirror is not None and head.mirror.state == SUPERSEDED and not head.deleting:
            found.append(await _difference(old, new, name, head, there.epoch))
    return found


async def differing_objects(old: Side, new: Side, namespace: str) -> KeptObjects | None:
    """Return what only the old side has of objects; None if it has none. After `differences`."""
    there = await read_link(new, namespace)
    return None if there is None else await kept_objects(old, new, namespace, there.epoch)


def _superseded(new: Side, there: Link) -> Link:
    return replace(there, state=SUPERSEDED, cluster=new.cluster, uri=new.uri)


async def _difference(old: Side, new: Side, name: StreamName, head: Head, epoch: int) -> Difference:
    first = head.earliest
    try:
        mark = (await new.streams.read(name)).head.mirror
    except NoSuchStream:
        mark = None
    if mark is not None and (mark.cluster, mark.uid) == (old.cluster, head.uid):
        first = max(first, mark.end)
    first = min(first, head.end)
    kept = check_name("stream", f"{name.stream}{_KEPT}{epoch}") if head.end > first else ""
    return Difference(str(name), first, head.end, f"{name.namespace}/{kept}" if kept else "")


async def reconcile(
    old: Side, new: Side, namespace: str, found: Sequence[Difference], pace: Pace | None = None
) -> None:
    """Keep aside what only the old side has, delete its streams, and let the new side be copied here.

    `found` is what `differences` returned. It may be stopped and repeated, with what `differences` returns then. Raises
    ReplicationRefused if a stream has changed since, and the errors of copying.
    """
    there = await read_link(new, namespace)
    if there is None:
        raise ReplicationRefused(namespace, f"cluster {new.cluster} has no record of it any more")
    for one in found:
        name = StreamName(namespace, one.stream.partition("/")[2])
        head = (await old.streams.read(name)).head
        if head.mirror is None or head.mirror.state != SUPERSEDED or head.end != one.end or head.earliest > one.first:
            raise ReplicationRefused(str(name), "it has changed since it was compared: reconcile again")
        if one.kept:
            await _keep(old, name, head, one, pace or Pace(None))
        await delete_stream(old.client, old.streams, name, uid=head.uid)
    await keep_objects(old, new, namespace, there.epoch, pace or Pace(None))
    await _finish_deleting(old, namespace)
    await put_link(old, namespace, replace(_superseded(new, there), state=MIRROR, time=old.now()))


async def _finish_deleting(old: Side, namespace: str) -> None:
    """Delete what an earlier call was stopped at when it had begun to delete it, so that a mirror can take its name."""
    async for name in stream_names(old, namespace):
        try:
            head = (await old.streams.read(name)).head
            if head.deleting and head.mirror is not None and head.mirror.state == SUPERSEDED:
                await delete_stream(old.client, old.streams, name, uid=head.uid)
        except NoSuchStream:
            continue


async def _keep(old: Side, name: StreamName, head: Head, one: Difference, pace: Pace) -> None:
    """Copy the records into the stream that they are kept in. It has all of them when this returns."""
    kept = StreamName(name.namespace, one.kept.partition("/")[2])
    try:
        present = (await old.streams.read(kept)).head
        if present.mirror is not None and (present.mirror.state, present.mirror.uid) == (PROMOTED, head.uid):
            return  # An earlier call has kept them, and was stopped before it deleted the stream.
    except NoSuchStream:
        pass
    copying = StreamCopy(old, old, name, pace, into=kept, first=one.first)
    await copying.run(follow=False)
    if copying.copied != one.end:
        raise ReplicationRefused(str(name), f"only the records below {copying.copied} of {one.end} could be kept")
    mark = Mirror(PROMOTED, old.cluster, head.uid, head.mirror.epoch if head.mirror is not None else 0)
    await hand_over(old, kept, (await old.streams.read(kept)).head, mark)


__all__ = ["Difference", "differences", "differing_objects", "reconcile"]
