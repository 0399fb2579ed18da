"""Mirrors: streams whose records come from a stream in another cluster, at the same offsets; which side may be written.

A mirror is written by the replication alone, until it is promoted. The side that it was copied from is superseded then,
and takes no records, so that the two never have different records at one offset without a record of where they part.
Pure. Not here: the bytes of what is copied (`core/streams/batch_copies.py`), changing the head
(`core/streams/metadata/changes.py`), copying and promoting (`replication/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buckram.core.streams.metadata.head import Head, Mirror, Transaction
from buckram.errors import MirrorStream, ReplicationRefused

MIRROR, PROMOTED, SUPERSEDED = "mirror", "promoted", "superseded"
KEPT_SETTINGS = (
    "retention_s",
    "retention_bytes",
    "retention_cursors",
    "retention_consumed",
    "roll_bytes",
    "roll_s",
    "compression",
    "max_producers",
    "producer_s",
    "max_uploads",
)
"""Settings that a mirror has of its source. The others are about the bookies and places of one cluster."""


def check_writable(name: str, head: Head, mirror_of: str = "") -> None:
    """Raise MirrorStream for a writer that may not write here. `mirror_of`: for the replication, the uid of its
    source.
    """
    mark = head.mirror
    if mark is None or mark.state == PROMOTED:
        if mirror_of:
            raise MirrorStream(name, "is no mirror any more: it was promoted, and has writers of its own")
        return
    if mark.state == SUPERSEDED:
        namespace = name.partition("/")[0]
        raise MirrorStream(
            name,
            f"the side in cluster {mark.cluster} was promoted in its place: write there; `buckram replicate reconcile "
            f"{namespace}` says which records only this side has, and makes it a mirror",
        )
    if mark.uid != mirror_of:
        namespace = name.partition("/")[0]
        raise MirrorStream(
            name,
            f"is a mirror of the stream in cluster {mark.cluster}: write there, or make this side writable with "
            f"`buckram replicate promote {namespace}`",
        )


def check_counterpart(name: str, found: Head, cluster: str, uid: str) -> None:
    """Raise ReplicationRefused unless `found` is the mirror of the stream with this uid in that cluster."""
    mark = found.mirror
    if found.deleting:
        raise ReplicationRefused(name, "the target's stream is being deleted; run it again when it is gone")
    if mark is None:
        raise ReplicationRefused(
            name,
            "the target has a stream of this name that no replication made: delete it, or copy into another cluster",
        )
    if mark.state == SUPERSEDED:
        namespace = name.partition("/")[0]
        raise ReplicationRefused(
            name, f"the target may have records that only it has: `buckram replicate reconcile {namespace}` first"
        )
    if mark.state == PROMOTED:
        raise ReplicationRefused(name, "the target's stream was promoted and has writers of its own")
    if (mark.cluster, mark.uid) != (cluster, uid):
        raise ReplicationRefused(
            name,
            f"the target is a mirror of another stream (uid {mark.uid} in cluster {mark.cluster}), and this one has "
            f"uid {uid}: it was deleted and created anew; delete the mirror to copy it from the beginning",
        )


def mirror_of(cluster: str, uid: str, epoch: int) -> Mirror:
    """Return the mark of a stream that is copied from another cluster."""
    return Mirror(MIRROR, cluster, uid, epoch)


def is_copied(mark: Mirror | None, source: str, target: str) -> bool:
    """Return whether a stream in cluster `target` is a mirror of one in cluster `source`, or keeps records of its own
    cluster aside. Any other one is a stream of the target's own.
    """
    return mark is not None and (mark.cluster == target or (mark.state, mark.cluster) == (MIRROR, source))


def mirrored_settings(source: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mirror's own settings: those of KEPT_SETTINGS are as in its source, the others stay as they are."""
    own = {name: value for name, value in present.items() if name not in KEPT_SETTINGS}
    return own | {name: value for name, value in source.items() if name in KEPT_SETTINGS}


def mirrored_transactions(
    source: Mapping[str, Transaction], present: Mapping[str, Transaction], next_offset: int
) -> dict[str, Transaction]:
    """Return a mirror's transactions before it gets the record `next_offset`: those that begin there or before.

    They are there before the first of their records, so that after a promotion no step is published twice. Of an
    application whose newest step begins later, the one that is known stays.
    """
    kept: dict[str, Transaction] = {}
    for application, done in source.items():
        known = present.get(application)
        if done.first_offset <= next_offset:
            kept[application] = done
        elif known is not None:
            kept[application] = known
    return kept


def unfinished(transactions: Mapping[str, Transaction], end: int) -> dict[str, Transaction]:
    """Return the transactions of which a mirror that ends at `end` lacks records."""
    return {name: done for name, done in transactions.items() if done.next_offset > end}
