"""Reconciling: the side that a promotion replaced becomes a mirror, and what only it has is kept aside.

    found = await differences(old, new, namespace)
    await reconcile(old, new, namespace, found)

All records that both sides have are compared: what lies below the position of a mirror is not the same for that alone.
The records that only the old side has are copied, at their offsets, into a stream of their own in the old cluster,
NAME.kept-EPOCH, and objects into the namespace NAMESPACE.kept-EPOCH; only when they are there is what they were copied
from deleted. Then a replication in the other direction makes it anew, as a mirror. Not here: promoting
(`replication/promotion.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from buckram.core.streams.metadata.head import Head
from buckram.core.streams.metadata.mirrors import MIRROR, PROMOTED, SUPERSEDED
from buckram.core.streams.metadata.purposes import purpose_of
from buckram.core.streams.names import OBJECTS_LOG, StreamName, check_name
from buckram.core.streams.records.positions import seen
from buckram.core.streams.replication_links import Link, is_superseded
from buckram.errors import NoSuchStream, ReplicationRefused
from buckram.replication.divergent_data import keep_records, only_in_state
from buckram.replication.fencing import supersede
from buckram.replication.object_differences import KeptObjects, keep_objects, kept_objects
from buckram.replication.positions import ComparedStream, first_difference, record_at
from buckram.replication.sides import Side, put_link, read_link, stream_names
from buckram.runtime.net.pace import Pace
from buckram.streams.maintain.delete import delete_stream

_KEPT = ".kept-"


@dataclass(frozen=True, slots=True)
class StreamDifference:
    """Records of one stream that the old side has, and that the new one lacks or has otherwise: `first` to `end` - 1.

    The records below `first` were compared, one by one.
    """

    stream: str
    first: int
    end: int
    kept: str
    """The stream that they are kept in; empty if there are none."""
    others: int = 0
    """Number of these offsets that have other records on the new side, which stay there: the old side went back with
    its metadata, or the two were never the same.
    """
    state: bool = False
    """True if it is the log of a machine, whose snapshots alone have what the commands below `first` did: the stream
    that is kept is a machine's log with a snapshot.
    """

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
            **({"differing": self.others} if self.others else {}),
            **({"with_state": True} if self.state else {}),
        }


async def differences(old: Side, new: Side, namespace: str) -> list[StreamDifference]:
    """Fence the old side if it is not, and return which records only it has. Nothing else is changed.

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
    found: list[StreamDifference] = []
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
    """Return the objects that only the old side has; None if there are none. To be called after `differences`."""
    there = await read_link(new, namespace)
    return None if there is None else await kept_objects(old, new, namespace, there.epoch)


def _superseded(new: Side, there: Link) -> Link:
    return replace(there, state=SUPERSEDED, cluster=new.cluster, uri=new.uri)


async def _difference(old: Side, new: Side, name: StreamName, head: Head, epoch: int) -> StreamDifference:
    first, copied = await _compared(ComparedStream(old, name), ComparedStream(new, name), head)
    state = first != copied and only_in_state(head, first)
    kept = check_name("stream", f"{name.stream}{_KEPT}{epoch}") if head.end > first or state else ""
    others = max(min(copied, head.end) - first, 0)
    return StreamDifference(str(name), first, head.end, f"{name.namespace}/{kept}" if kept else "", others, state)


async def _compared(old: ComparedStream, new: ComparedStream, head: Head) -> tuple[int, int]:
    """Return the first offset at which the new side lacks a record of the old one, or has another one, and the offset
    up to which the new side was a mirror.

    All records are compared that both have. What the new side has truncated is the same if the record behind it is, or
    the one that it remembers to have copied last.
    """
    try:
        other = (await new.side.streams.read(new.name)).head
    except NoSuchStream:
        return head.earliest, 0
    mark = other.mirror
    if mark is None or (mark.cluster, mark.uid) != (old.side.cluster, head.uid):
        return head.earliest, 0
    low, stop = max(head.earliest, other.earliest), min(mark.end, head.end)
    if low < stop:
        return await first_difference(old, new, low, stop), mark.end
    if stop <= head.earliest:
        return head.earliest, mark.end
    known = other.mark
    record = None if known is None else await record_at(old, known.offset - 1)
    same = known is not None and record is not None and known.offset >= stop and seen(record)[1] == known.digest
    return (stop if same else head.earliest), mark.end


async def reconcile(
    old: Side, new: Side, namespace: str, found: Sequence[StreamDifference], pace: Pace | None = None
) -> None:
    """Keep aside what only the old side has, delete its streams, and let the new side be copied here.

    `found`: the result of `differences`. It may be stopped and repeated, with a new result of `differences`. Raises
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
            kept = StreamName(namespace, one.kept.partition("/")[2])
            await keep_records(old, name, head, kept, one.first, one.end, pace or Pace(None), state=one.state)
        await delete_stream(old.client, old.streams, name, uid=head.uid, acting_for=purpose_of(str(name), head))
    await keep_objects(old, new, namespace, there.epoch, pace or Pace(None))
    await _finish_deleting(old, namespace)
    await put_link(old, namespace, replace(_superseded(new, there), state=MIRROR, time=old.now()))


async def _finish_deleting(old: Side, namespace: str) -> None:
    """Delete what an earlier call had begun to delete when it was stopped, so that a mirror can take its name."""
    async for name in stream_names(old, namespace):
        try:
            head = (await old.streams.read(name)).head
            if head.deleting and head.mirror is not None and head.mirror.state == SUPERSEDED:
                purpose = purpose_of(str(name), head)
                await delete_stream(old.client, old.streams, name, uid=head.uid, acting_for=purpose)
        except NoSuchStream:
            continue
