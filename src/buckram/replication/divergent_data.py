"""Keeping aside what only one cluster has, before the copy that has it is deleted or becomes a mirror.

Records go, at their offsets, into a stream of their own in the same namespace, objects into a namespace of their own.
Where a machine's log has lost commands that only its snapshots have, that stream is a machine's log with a snapshot.
Not here: which these are (`replication/reconciling.py`, `replication/positions.py`).
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress

from buckram.core.streams.metadata.head import Head, Mirror
from buckram.core.streams.metadata.mirrors import PROMOTED
from buckram.core.streams.metadata.purposes import purpose_of
from buckram.core.streams.names import OBJECTS_LOG, StreamName, check_name
from buckram.core.streams.records.positions import mark_of
from buckram.errors import NoSuchStream, ReplicationRefused, SourceWentBack
from buckram.replication.fencing import hand_over
from buckram.replication.object_copy import observed
from buckram.replication.object_differences import keep, only_there
from buckram.replication.positions import ComparedStream, write_mark
from buckram.replication.sides import Side
from buckram.replication.stream_copy import StreamCopy
from buckram.runtime.net.pace import Pace
from buckram.streams.maintain.delete import delete_stream
from buckram.streams.shared.metadata import retry_metadata
from buckram.types import Offset


async def keep_records(
    side: Side,
    name: StreamName,
    head: Head,
    kept: StreamName,
    first: int,
    end: int,
    pace: Pace,
    *,
    state: bool = False,
) -> None:
    """Copy the records from `first` to `end` - 1 of a stream into the stream `kept` of the same cluster.

    It has all of them when this returns, and with `state` a snapshot of the machine whose log it is; it may be stopped
    and repeated. Raises ReplicationRefused if some are not there, and the errors of copying.
    """
    try:
        present = (await side.streams.read(kept)).head
        if present.mirror is not None and (present.mirror.state, present.mirror.uid) == (PROMOTED, head.uid):
            return  # An earlier call has kept them, and was stopped before it deleted the stream.
    except NoSuchStream:
        pass
    copying = StreamCopy(side, side, name, pace, into=kept, first=first, state=state)
    await copying.run(follow=False)
    if copying.copied != end:
        raise ReplicationRefused(str(name), f"only the records below {copying.copied} of {end} could be kept")
    made = (await side.streams.read(kept)).head
    if state and not made.snapshots:
        raise ReplicationRefused(str(name), f"no snapshot could be kept of the records below {first}")
    mark = Mirror(PROMOTED, side.cluster, head.uid, head.mirror.epoch if head.mirror is not None else 0)
    await hand_over(side, kept, made, mark)


def only_in_state(head: Head, first: Offset) -> bool:
    """Return whether commands below `first` may be in a machine's snapshots alone, since its log has lost them."""
    return bool(head.snapshots) and 0 < head.earliest >= first


async def begin_anew(source: Side, target: Side, name: StreamName, found: SourceWentBack, pace: Pace) -> str:
    """Keep aside what only the mirror has, and delete the mirror, so that the next run begins it anew.

    Returns the stream in which the records are kept; empty if there were none.
    """
    epoch = (await retry_metadata(source.client.services.store.history)).epoch
    head = (await target.streams.read(name)).head
    kept = ""
    state = only_in_state(head, found.first)
    if found.first < found.end or state:
        aside = StreamName(name.namespace, check_name("stream", f"{name.stream}.kept-restore-{epoch}"))
        await keep_records(target, name, head, aside, found.first, found.end, pace, state=state)
        kept = str(aside)
    with suppress(NoSuchStream):
        await delete_stream(target.client, target.streams, name, uid=head.uid, acting_for=purpose_of(str(name), head))
    return kept


async def go_on_with_objects(source: Side, target: Side, namespace: str, pace: Pace) -> str:
    """Keep aside the objects that only the mirror has, so that the next run may make it the same as the source.

    Returns the namespace in which they are; empty if there were none. It may be stopped and repeated.
    """
    history = await retry_metadata(source.client.services.store.history)
    name = StreamName(namespace, OBJECTS_LOG)
    kept = ""
    async with AsyncExitStack() as stack:
        mirror = await observed(stack, target, namespace)
        only = await only_there(stack, mirror, target, source)
        if only:
            kept = check_name("namespace", f"{namespace}.kept-restore-{history.epoch}")
            await keep(target, mirror, only, kept, pace)
    head = (await target.streams.read(name)).head
    uid = head.mirror.uid if head.mirror is not None else ""
    await write_mark(ComparedStream(target, name), head.uid, uid, mark_of(0, None, history))
    return kept
