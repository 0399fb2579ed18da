"""Differences in objects between two clusters: for the lag, a promotion, and reconciling.

Not here: making the mirror the same (`replication/object_copy.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from buckram.cluster import Client
from buckram.core.objects.index_difference import IndexDifference, Named, Outline, difference
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.metadata.mirrors import SUPERSEDED
from buckram.core.streams.metadata.purposes import Purpose
from buckram.core.streams.names import OBJECTS_LOG, StreamName, check_name
from buckram.errors import NamespaceExists, NoSuchStream
from buckram.replication.lag import read_progress
from buckram.replication.object_copy import compared, observed
from buckram.replication.sides import Side
from buckram.runtime.net.pace import Pace
from buckram.state.objects.mirror import ObservedObjects
from buckram.streams.maintain.delete import delete_stream

_NAMED = 1000
"""Maximum number of names that are returned."""
_NOTHING = Outline(0, {})


@dataclass(frozen=True, slots=True)
class MissingObjects:
    """Objects that a mirror lacks of its source. Numbers are None if the source could not be asked."""

    missing: int | None
    """Number of objects that it lacks, or has in an older version."""
    bytes: int | None
    """Bytes of the missing objects."""
    names: tuple[str, ...]
    """The first of these by the order in which they were put, at most 1000."""
    undeleted: int | None
    """Number of objects that it has, and that the source does not have any more."""
    seconds: float | None
    """Seconds since the first of the missing objects was put."""
    copied_version: int | None
    """Everything that was put in the source up to this version of its index is known to have been copied."""
    source_version: int | None
    """Version of the source's index up to which the source is known to have been."""
    asked: int | None = None
    """Time at which the source was last asked, microseconds UTC, if it cannot be asked now."""
    trouble: str = ""
    """Reason why objects are not copied, as last written down; empty if they are."""
    since: int = 0
    """Time since which `trouble` holds, microseconds UTC."""

    def as_json(self) -> dict[str, Any]:
        return {
            "missing": self.missing,
            "missing_bytes": self.bytes,
            "lag_s": self.seconds,
            "names": list(self.names),
            "undeleted": self.undeleted,
            "copied_version": self.copied_version,
            "source_version": self.source_version,
            "unknown_beyond": self.missing is None,
            "asked_us": self.asked,
            **({"trouble": self.trouble, "trouble_since_us": self.since} if self.trouble else {}),
        }


@dataclass(frozen=True, slots=True)
class KeptObjects:
    """Objects that only the old side has."""

    objects: int
    bytes: int
    kept: str
    """The namespace of the old cluster in which they are kept; empty if there are none."""

    def as_json(self) -> dict[str, Any]:
        return {"objects": self.objects, "bytes": self.bytes, "kept": self.kept or None}


async def missing_objects(source: Side | None, target: Side, namespace: str) -> MissingObjects | None:
    """Return what the mirror of a namespace's objects lacks; None if it has no objects.

    Without a `source`, it is as it was last written down. Raises the errors of opening objects.
    """
    try:
        mirror = (await target.streams.read(StreamName(namespace, OBJECTS_LOG))).head
    except NoSuchStream:
        return None
    said = await read_progress(target, mirror.uid)
    copied = None if said is None else said.copied
    trouble = ("", 0) if said is None else (said.trouble, said.since)
    if source is None:
        known, asked = (None, None) if said is None else (said.source_end, said.time)
        return MissingObjects(None, None, (), None, None, copied, known, asked, *trouble)
    found, version = await _compared(source, target, namespace)
    seconds = 0.0 if found.since is None else max(source.client.services.clocks.now() - found.since, 0) / 1e6
    names = tuple(name for name, _ in found.puts[:_NAMED])
    copied = version if not found.puts else min(row.version for _, row in found.puts) - 1
    gone = len(found.gone)
    return MissingObjects(len(found.puts), found.bytes, names, gone, round(seconds, 3), copied, version, None, *trouble)


async def _compared(source: Side, target: Side, namespace: str) -> tuple[IndexDifference, int]:
    async with AsyncExitStack() as stack:
        here = await observed(stack, target, namespace)
        try:
            there = await observed(stack, source, namespace)
        except NoSuchStream:  # The source has no objects any more.
            return difference(_NOTHING, await here.outline(), 0), 0
        return await compared(there, here, source)


# -- reconciling ------------------------------------------------------------------------------------------


async def kept_objects(old: Side, new: Side, namespace: str, epoch: int) -> KeptObjects | None:
    """Return the objects that only the old side of a namespace has; None if it has none to be reconciled."""
    if await _superseded(old, namespace) is None:
        return None
    async with AsyncExitStack() as stack:
        only = await only_there(stack, await observed(stack, old, namespace), old, new)
    kept = check_name("namespace", f"{namespace}.kept-{epoch}") if only else ""
    return KeptObjects(len(only), sum(row.size for _, row in only), kept)


async def keep_objects(old: Side, new: Side, namespace: str, epoch: int, pace: Pace) -> None:
    """Copy the objects that only the old side has into a namespace of their own, and delete the old side's objects.

    It may be stopped and repeated.
    """
    head = await _superseded(old, namespace)
    if head is None:
        return
    async with AsyncExitStack() as stack:
        there = await observed(stack, old, namespace)
        only = await only_there(stack, there, old, new)
        if only:
            await keep(old, there, only, check_name("namespace", f"{namespace}.kept-{epoch}"), pace)
    name = StreamName(namespace, OBJECTS_LOG)
    await delete_stream(old.client, old.streams, name, uid=head.uid, acting_for=Purpose.OBJECTS)


async def _superseded(old: Side, namespace: str) -> Head | None:
    try:
        head = (await old.streams.read(StreamName(namespace, OBJECTS_LOG))).head
    except NoSuchStream:
        return None
    return head if head.mirror is not None and head.mirror.state == SUPERSEDED and not head.deleting else None


async def only_there(stack: AsyncExitStack, there: ObservedObjects, old: Side, new: Side) -> Sequence[Named]:
    """Return the objects whose bytes the new side does not have under their names."""
    try:
        here = await observed(stack, new, there.namespace)
    except NoSuchStream:
        return difference(await there.outline(), _NOTHING, 0).puts
    found, _ = await compared(there, here, old)
    present = {(name, row.digest, row.size) for name, row in found.replaced}
    return [(name, row) for name, row in found.puts if (name, row.digest, row.size) not in present]


async def keep(old: Side, there: ObservedObjects, only: Sequence[Named], kept: str, pace: Pace) -> None:
    """Put objects of a side into the namespace `kept` of the same cluster. It may be stopped and repeated."""
    policy = (await old.namespaces.get(there.namespace)).policy
    with suppress(NamespaceExists):  # An earlier call was stopped.
        await old.namespaces.create(kept, **policy)
    client: Client = old.client
    async with client.objects(kept) as objects:
        for name, row in only:
            await pace.take(row.size)
            await objects.put(name, there.bytes_of(name, row), metadata=dict(row.metadata))
