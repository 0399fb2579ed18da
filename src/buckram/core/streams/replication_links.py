"""Links: what two clusters know of the replication of a namespace between them, and when it is refused. Pure.

Each cluster has a record for the namespace: whether it is the source or the mirror, with which other cluster, and how
many promotions there were (`epoch`). A promotion raises the epoch on the side that becomes writable. The other side,
when it is met again with a lower one, is superseded. A mirror also has a record of its progress, with the reason if
copying has stopped.

Not here: marks of single streams (`core/streams/metadata/mirrors.py`), reading and writing the records
(`replication/sides.py`, `replication/lag.py`), promoting (`replication/promotion.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from buckram.core.streams.json_values import is_int64
from buckram.core.streams.metadata.mirrors import MIRROR, PROMOTED, SUPERSEDED
from buckram.errors import MalformedRecord, ReplicationRefused

FORMAT = 1

SOURCE = "source"

STATES = (SOURCE, MIRROR, PROMOTED, SUPERSEDED)
NAMED = 5
"""Maximum number of streams that a refusal names."""


@dataclass(frozen=True, slots=True)
class Link:
    """One cluster's record of a namespace. `version` is that of its key; -1: the key does not exist."""

    state: str
    """SOURCE: copied to the other cluster; MIRROR: copied from it; PROMOTED: was a mirror and is written now;
    SUPERSEDED: the other side was promoted.
    """
    cluster: str
    """The identity of the other cluster."""
    uri: str
    """URI of the other cluster as the command gave it; empty if that has a password in it."""
    epoch: int = 0
    """The number of promotions so far."""
    time: int = 0
    """When the record was written, microseconds UTC."""
    streams: tuple[str, ...] = ()
    """Names of the replicated streams; empty for all streams of the namespace."""
    version: int = -1
    tentative: bool = False
    """True for a MIRROR while a run looks whether this side has streams of its own. Nothing is created here meanwhile;
    for anything else such a record is none, since whoever wrote it may be gone.
    """

    def has(self, stream: str) -> bool:
        """Return whether a stream of the namespace, by its bare name, is replicated; objects are only with the whole
        namespace.
        """
        return not self.streams or stream in self.streams

    def joined(self, streams: frozenset[str]) -> tuple[str, ...]:
        """Return the streams that are replicated once these (none: all) are, too."""
        return tuple(sorted({*self.streams, *streams})) if self.streams and streams else ()


def encode_link(link: Link) -> bytes:
    fields = {"state": link.state, "cluster": link.cluster, "uri": link.uri, "epoch": link.epoch, "time": link.time}
    rest: dict[str, object] = {"streams": list(link.streams)} if link.streams else {}
    rest |= {"tentative": True} if link.tentative else {}
    return json.dumps({"format": FORMAT, **fields, **rest}, ensure_ascii=False, separators=(",", ":")).encode()


def decode_link(key: str, data: bytes, version: int) -> Link:
    """Return a namespace's record. MalformedRecord names the key."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            raise MalformedRecord(f"{key}: format {raw['format']!r}, this version of buckram knows {FORMAT}")
        if raw["state"] not in STATES or not is_int64(raw["epoch"]) or not is_int64(raw["time"]):
            raise ValueError("a field has a value that it never has")
        streams = tuple(map(str, raw.get("streams", ())))
        tentative = raw.get("tentative") is True
        return Link(
            raw["state"], str(raw["cluster"]), str(raw["uri"]), raw["epoch"], raw["time"], streams, version, tentative
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecord(f"{key}: not the record of a replication ({error!r}); restore a good copy") from None


def shown_uri(uri: str) -> str:
    """Return a cluster's URI for its record: empty if it has a password, which no record is to have."""
    return "" if "@" in uri else uri


def confirmed(link: Link | None) -> Link | None:
    """Return the record that holds: None instead of a tentative one."""
    return None if link is None or link.tentative else link


def version_of(link: Link | None) -> int:
    """Return the version under which a record is replaced; -1 if there is none yet."""
    return -1 if link is None else link.version


def is_superseded(here: Link | None, there: Link | None, cluster: str) -> bool:
    """Return whether the side `here`, in `cluster`, was replaced by a promotion of the side `there`."""
    epoch = here.epoch if here is not None else 0
    return there is not None and there.state == PROMOTED and there.cluster == cluster and there.epoch > epoch


def check_creation(namespace: str, stream: str, link: Link | None, copied_from: str = "") -> None:
    """Raise ReplicationRefused for a new stream in a cluster whose side of the namespace was replaced, or is a mirror.

    `copied_from`: the cluster whose stream the replication copies into this one; empty for any other creation.
    """
    if link is None or not link.has(stream):
        return
    if copied_from and copied_from != link.cluster:
        return  # What only this side has is kept aside here.
    name = f"{namespace}/{stream}"
    if link.state == SUPERSEDED:
        raise ReplicationRefused(
            name,
            f"the side in cluster {link.cluster} was promoted in place of this one, so nothing is created here: create "
            f"it there; `buckram replicate reconcile {namespace}` makes this side a mirror",
        )
    if link.tentative and not copied_from:
        raise ReplicationRefused(
            name,
            f"a `buckram replicate run` looks whether this side can be a mirror of cluster {link.cluster}, or was "
            "stopped while it did: run it again, or in the other direction if this side is the one that is written",
        )
    if link.state == MIRROR and not copied_from:
        raise ReplicationRefused(
            name,
            f"this side is a mirror of cluster {link.cluster}, so nothing is created here: create it there, or make "
            f"this side writable with `buckram replicate promote {namespace}`",
        )
    if copied_from and link.state == PROMOTED:
        raise ReplicationRefused(
            name, "this side was promoted and has writers of its own: no mirror is made here any more"
        )


def check_ledger(namespace: str, link: Link | None) -> None:
    """Raise ReplicationRefused for a new ledger of a whole namespace, in a cluster whose side of it was replaced."""
    if link is not None and link.state == SUPERSEDED and not link.streams:
        raise ReplicationRefused(
            namespace,
            f"the side in cluster {link.cluster} was promoted in place of this one, so no ledger of the namespace is "
            "created here: create it there",
        )


def check_run(namespace: str, source: Link | None, target: Link | None, source_id: str, target_id: str) -> None:
    """Raise ReplicationRefused unless the namespace may be copied from `source` to `target`, as far as links say."""
    source, target = confirmed(source), confirmed(target)
    if source_id == target_id:
        raise ReplicationRefused(
            namespace, f"both sides are the same cluster, {source_id}: give --from and --to different ones"
        )
    if is_superseded(source, target, source_id) or (source is not None and source.state == SUPERSEDED):
        raise ReplicationRefused(
            namespace,
            "the target was promoted in place of the source, which has to become a mirror itself: `buckram replicate "
            f"reconcile {namespace}`, then run in the other direction",
        )
    if is_superseded(target, source, target_id) or (target is not None and target.state == SUPERSEDED):
        raise ReplicationRefused(
            namespace,
            "the source was promoted in place of the target, which may have records that only it has: `buckram "
            f"replicate reconcile {namespace}` first",
        )
    if target is not None and target.state == PROMOTED:
        raise ReplicationRefused(
            namespace, "the target was promoted and has writers of its own; copy into a cluster that is no source"
        )
    # The source's own record may be missing: it is written after that of the mirror, and a restore may forget it.
    swapped = source is not None and (source.state, source.cluster) == (MIRROR, target_id)
    if swapped or (target is not None and (target.state, target.cluster) == (SOURCE, source_id)):
        raise ReplicationRefused(
            namespace, "the target is the source of the source: swap --from and --to, or promote the mirror first"
        )
    if target is not None and target.state == MIRROR and target.cluster != source_id:
        raise ReplicationRefused(namespace, f"the target is a mirror of another cluster already, {target.cluster}")


def check_target(namespace: str, own: Sequence[str]) -> None:
    """Raise ReplicationRefused if the target has streams of its own that no copy from the source made; `own` names
    some.
    """
    if not own:
        return
    names = ", ".join(own[:NAMED]) + (", ..." if len(own) > NAMED else "")
    raise ReplicationRefused(
        namespace,
        f"the target has streams of its own that are no mirrors of this source: {names}. If the "
        "target is the side that is written, swap --from and --to. Otherwise delete them there first, name single "
        "streams to copy, or copy into another cluster",
    )


# -- progress of a mirror -------------------------------------------------------------------------------------


class MirrorProgress(NamedTuple):
    """Progress of a mirror as the replication last recorded it."""

    source_end: int
    """The offset after the last record that was readable in the source."""
    copied: int
    """The offset up to which the mirror had the records."""
    time: int
    """Time of this record, microseconds UTC."""
    trouble: str = ""
    """Reason why copying has stopped; empty while it goes on."""
    since: int = 0
    """Time since which copying has stopped, microseconds UTC; 0 while it goes on."""


def parse_progress(key: str, value: bytes) -> MirrorProgress:
    """Parse the recorded progress of a mirror. Raises MalformedRecord, which names the key."""
    try:
        raw = json.loads(value)
        numbers = [raw["source_end"], raw["copied"], raw["time"], raw.get("since", 0)]
        if not all(map(is_int64, numbers)):
            raise TypeError("a number is none")
        return MirrorProgress(numbers[0], numbers[1], numbers[2], str(raw.get("trouble", "")), numbers[3])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecord(f"{key}: not how far a mirror is ({error!r}); delete it") from None
