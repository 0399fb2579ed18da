"""Promotion: a mirror becomes the side that writes, and reports exactly which records of the other side it lacks.

The other side is fenced first if it can be reached. If it cannot, it is fenced as soon as a replication or a promotion
meets it again: its record has a lower epoch then. Not here: making a mirror of that side (`reconciling.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from buckram.core.streams.metadata.head import Head, Mirror
from buckram.core.streams.metadata.mirrors import MIRROR, PROMOTED, SUPERSEDED, unfinished
from buckram.core.streams.names import OBJECTS_LOG, StreamName
from buckram.core.streams.replication_links import Link
from buckram.errors import NoSuchStream, ReplicationRefused
from buckram.replication.fencing import hand_over, supersede
from buckram.replication.lag import read_progress
from buckram.replication.object_differences import MissingObjects, missing_objects
from buckram.replication.positions import ComparedStream, parted, record_at
from buckram.replication.sides import Side, put_link, read_link, stream_names
from buckram.streams.read.locate import known_end


@dataclass(frozen=True, slots=True)
class PromotedStream:
    """Result of a promotion for one stream."""

    stream: str
    end: int
    """First offset that the mirror does not have; it goes on here."""
    source_end: int | None
    """The offset after the last record that the source is known to have; None if that was never known."""
    exact: bool
    """True if the source was fenced, so that it has no record beyond. Otherwise it may have more, which cannot be
    known.
    """
    unfinished: tuple[str, ...] = ()
    """Transactions of the source of which records lack, as APPLICATION VERSION."""
    lacks_state: bool = False
    """True if it is the log of a machine whose first snapshot was not copied yet, and whose older records the source
    truncated: no state can be made of it.
    """
    compared: bool = False
    """True if the last record that both sides have was compared, and those below it if that one differs."""
    differs: int | None = None
    """First offset at which the source has another record, because it went back with its metadata; None if none was
    found.
    """

    @property
    def missing(self) -> int | None:
        """Return how many records are known to be missing in the mirror; None if the source's end was never known."""
        if self.source_end is None:
            return None
        return max(self.source_end - (self.end if self.differs is None else self.differs), 0)

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "copied": self.end,
            "source_end": self.source_end,
            "missing": self.missing,
            "unknown_beyond": not self.exact,
            "unfinished": list(self.unfinished),
            "lacks_state": self.lacks_state,
            "compared": self.compared,
            "differs_from": self.differs,
        }


@dataclass(slots=True)
class Promotion:
    """Result of a promotion."""

    namespace: str
    epoch: int
    source: str
    """Identity of the other cluster."""
    fenced: bool
    """True if the other side was fenced. Otherwise it is fenced when it is met again."""
    streams: list[PromotedStream]
    only_there: list[str]
    """Streams of the other side that have no mirror here; empty if it could not be asked."""
    objects: MissingObjects | None = None
    """Objects that the mirror did not have; None if there is no mirror of objects."""

    def as_json(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "epoch": self.epoch,
            "source": self.source,
            "source_fenced": self.fenced,
            "streams": [one.as_json() for one in self.streams],
            "not_copied": self.only_there,
            "objects": None if self.objects is None else self.objects.as_json(),
        }


async def promote(target: Side, namespace: str, source: Side | None, *, force: bool = False) -> Promotion:
    """Make the mirrors of a namespace writable. `source`: the other side, if it can be reached.

    While the other side can be reached, it is refused without `force`; with it the other side is fenced first. It may
    be stopped and repeated. Raises ReplicationRefused, NoSuchNamespace, RecoveryFailed, MetadataUnavailable.
    """
    await target.namespaces.get(namespace)
    link = await read_link(target, namespace)
    if link is None or link.state not in (MIRROR, PROMOTED):
        part = "is no mirror" if link is None else f"is {link.state} and no mirror"
        raise ReplicationRefused(namespace, f"it {part} in this cluster, so there is nothing to promote")
    if source is not None and source.cluster != link.cluster:
        raise ReplicationRefused(
            namespace,
            f"it is a mirror of cluster {link.cluster}, and the other side that was named is {source.cluster}",
        )
    epoch = link.epoch if link.state == PROMOTED else link.epoch + 1
    if source is not None and not force and link.state == MIRROR:
        raise ReplicationRefused(
            namespace,
            f"the other side, cluster {link.cluster}, is alive: stop its writers, let `buckram replicate run --once` "
            "copy the rest, and promote with --force, which fences the other side's writers first; records not copied "
            "by then are only there",
        )
    if source is not None:
        await supersede(source, namespace, Link(SUPERSEDED, target.cluster, target.uri, epoch, 0, link.streams))
    found = Promotion(namespace, epoch, link.cluster, source is not None, [], [])
    async for name in stream_names(target, namespace):
        try:
            head = (await target.streams.read(name)).head
            mark = head.mirror
            if mark is None or mark.cluster != link.cluster or mark.state not in (MIRROR, PROMOTED):
                continue
            head = await _promoted(target, name, head, mark, epoch)
            if name.stream == OBJECTS_LOG:
                found.objects = await missing_objects(source, target, namespace)
            else:
                found.streams.append(await _told(target, source, name, head))
        except NoSuchStream:
            continue
    if source is not None:
        mirrored = {one.stream for one in found.streams}
        names = [name async for name in stream_names(source, namespace) if link.has(name.stream)]
        found.only_there = [str(name) for name in names if str(name) not in mirrored and name.stream != OBJECTS_LOG]
        if found.objects is None and any(name.stream == OBJECTS_LOG for name in names):
            found.only_there.append(f"{namespace}/objects")
    await put_link(target, namespace, replace(link, state=PROMOTED, epoch=epoch, time=target.now(), tentative=False))
    return found


async def _promoted(target: Side, name: StreamName, head: Head, mark: Mirror, epoch: int) -> Head:
    if mark.state == PROMOTED and mark.epoch == epoch:
        return head
    return await hand_over(target, name, head, mark._replace(state=PROMOTED, epoch=epoch))


async def _told(target: Side, source: Side | None, name: StreamName, head: Head) -> PromotedStream:
    assert head.mirror is not None
    end, lost = head.mirror.end, head.snapshots == () and head.earliest > 0
    lacking = tuple(f"{app} {done.version}" for app, done in sorted(unfinished(head.transactions, end).items()))
    if source is not None:
        try:
            there = (await source.streams.read(name)).head
            source_end = await known_end(source.client, name, there)
            compared, differs = await _compared(source, target, name, there, head, min(end, source_end))
            return PromotedStream(str(name), end, source_end, True, lacking, lost, compared, differs)
        except NoSuchStream:
            return PromotedStream(str(name), end, None, True, lacking, lost)
    said = await read_progress(target, head.uid)
    return PromotedStream(str(name), end, None if said is None else max(said.source_end, end), False, lacking, lost)


async def _compared(
    source: Side, target: Side, name: StreamName, there: Head, here: Head, end: int
) -> tuple[bool, int | None]:
    """Return whether the record before `end` could be compared, and the first offset at which the two differ,
    if any.
    """
    one, other = ComparedStream(source, name), ComparedStream(target, name)
    low = max(there.earliest, here.earliest)
    if low >= end:
        return not end, None
    if await record_at(one, end - 1) == await record_at(other, end - 1):
        return True, None
    return True, await parted(one, other, low, end - 1)
