"""The lag of mirrors behind their sources, and the progress record that a mirror keeps for later.

Not here: how a lag is measured (`streams/read/lag.py`), copying (`replication/stream_copy.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from buckram.core.streams.metadata.head import Head
from buckram.core.streams.metadata.mirrors import MIRROR
from buckram.core.streams.names import StreamName
from buckram.core.streams.replication_links import MirrorProgress, parse_progress
from buckram.errors import NoSuchKey, NoSuchStream
from buckram.metadata.tree.key_operations import overwrite
from buckram.replication.sides import Side
from buckram.streams.read.lag import behind
from buckram.streams.read.locate import known_end, known_reach
from buckram.streams.shared.metadata import retry_metadata


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag of one mirror. `seconds`: since the oldest record that it lacks was appended."""

    stream: str
    copied: int
    """The offset up to which the mirror has the records."""
    source_end: int | None
    """The offset after the source's last record; None if it is not known."""
    records: int | None = None
    bytes: int | None = None
    """Estimate of the bytes of the missing records, as the source stores them; None if the source cannot be asked."""
    seconds: float | None = None
    asked: int | None = None
    """Time at which the source was last known to end there, microseconds UTC, if it cannot be asked now."""
    trouble: str = ""
    """Reason why copying has stopped, as last written down; empty while it goes on."""
    since: int = 0
    """Time since which `trouble` holds, microseconds UTC."""

    def as_json(self) -> dict[str, Any]:
        trouble = {"trouble": self.trouble, "trouble_since_us": self.since} if self.trouble else {}
        return trouble | {
            "stream": self.stream,
            "copied": self.copied,
            "source_end": self.source_end,
            "lag_records": self.records,
            "lag_bytes": self.bytes,
            "lag_s": self.seconds,
            "asked_us": self.asked,
        }


async def write_progress(target: Side, uid: str, progress: MirrorProgress) -> None:
    """Write down the progress of the mirror with this uid. Raises MetadataUnavailable."""
    value = json.dumps(progress._asdict(), separators=(",", ":")).encode()
    await overwrite(target.streams.keys, target.streams.layout.progress(uid), value)


async def read_progress(target: Side, uid: str) -> MirrorProgress | None:
    """Return the progress that was written down; None if there is none. Raises MalformedRecord, MetadataUnavailable."""
    key = target.streams.layout.progress(uid)
    try:
        found = await retry_metadata(lambda: target.streams.keys.get(key))
    except NoSuchKey:
        return None
    return parse_progress(key, found.value)


async def note_trouble(target: Side, name: StreamName, trouble: str) -> None:
    """Write down why a mirror is not copied any more, and since when. The next progress replaces it."""
    try:
        head = (await target.streams.read(name)).head
    except NoSuchStream:
        return
    if head.mirror is None or head.mirror.state != MIRROR:
        return
    known = await read_progress(target, head.uid) or MirrorProgress(head.end, head.end, 0)
    if known.trouble != trouble:
        await write_progress(target, head.uid, known._replace(trouble=trouble, since=target.now() if trouble else 0))


async def lag_of(source: Side | None, target: Side, name: StreamName) -> Lag:
    """Return the lag of a mirror. Without a `source`, it is as it was last written down. Raises NoSuchStream."""
    mirror = (await target.streams.read(name)).head
    copied = await known_end(target.client, name, mirror)
    if source is not None:
        try:
            head = (await source.streams.read(name)).head
        except NoSuchStream:
            return Lag(str(name), copied, None)
        return await _asked(source, name, head, copied)
    said = await read_progress(target, mirror.uid)
    if said is None:
        return Lag(str(name), copied, None)
    end = max(said.source_end, copied)
    return Lag(str(name), copied, end, end - copied, asked=said.time)


async def _asked(source: Side, name: StreamName, head: Head, copied: int) -> Lag:
    reach = await known_reach(source.client, name, head)
    end = max(reach.end, copied)
    found = await behind(source.client, source.streams, name, head, reach, max(copied, head.earliest))
    seconds = found.seconds(source.client.services.clocks.now()) if end > copied else 0.0
    return Lag(str(name), copied, end, end - copied, found.bytes, seconds)


__all__ = ["Lag", "MirrorProgress", "lag_of", "note_trouble", "read_progress", "write_progress"]
