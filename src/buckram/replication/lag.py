"""Lag: how far mirrors are behind, in records, bytes and seconds, and what a mirror keeps of it for later.

Not here: copying (`replication/stream_copy.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from buckram.core.streams.head import Head, Segment
from buckram.core.streams.names import StreamName
from buckram.errors import MalformedRecord, NoSuchKey, NoSuchStream
from buckram.metadata.overwriting import overwrite
from buckram.replication.sides import Side
from buckram.streams.read.history import open_segment
from buckram.streams.read.locate import entry_of_offset, known_end
from buckram.streams.shared.metadata import retry_metadata
from buckram.streams.shared.recovery import entry_header

_US = 1_000_000


class Progress(NamedTuple):
    """What a replication last wrote down of a mirror."""

    source_end: int
    """The offset after the last record that was readable in the source."""
    copied: int
    """The offset up to which the mirror had the records."""
    time: int
    """When that was, microseconds UTC."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one mirror is behind. `seconds`: since the oldest record that it lacks was appended."""

    stream: str
    copied: int
    """The offset up to which the mirror has the records."""
    source_end: int | None
    """The offset after the source's last record; None if it is not known."""
    records: int | None = None
    bytes: int | None = None
    """Of the records that lack, as the source stores them; None if the source cannot be asked."""
    seconds: float | None = None
    asked: int | None = None
    """When the source was last known to end there, microseconds UTC, if it cannot be asked now."""

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "copied": self.copied,
            "source_end": self.source_end,
            "lag_records": self.records,
            "lag_bytes": self.bytes,
            "lag_s": self.seconds,
            "asked_us": self.asked,
        }


async def write_progress(target: Side, uid: str, progress: Progress) -> None:
    """Write down how far the mirror with this uid is. Raises MetadataUnavailable."""
    value = json.dumps(progress._asdict(), separators=(",", ":")).encode()
    await overwrite(target.streams.keys, target.streams.layout.progress(uid), value)


async def read_progress(target: Side, uid: str) -> Progress | None:
    """Return what was written down; None if nothing was. Raises MalformedRecord, MetadataUnavailable."""
    key = target.streams.layout.progress(uid)
    try:
        found = await retry_metadata(lambda: target.streams.keys.get(key))
        raw = json.loads(found.value)
        values = [raw[name] for name in Progress._fields]
        if any(type(value) is not int for value in values):
            raise TypeError("a number is none")
        return Progress(*values)
    except NoSuchKey:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedRecord(f"{key}: not how far a mirror is ({error!r}); delete it") from None


async def lag_of(source: Side | None, target: Side, name: StreamName) -> Lag:
    """Return how far a mirror is behind. `source` None: as far as it was written down. Raises NoSuchStream."""
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
    end = max(await known_end(source.client, name, head), copied)
    if end == copied:
        return Lag(str(name), copied, end, 0, 0, 0.0)
    size, oldest = 0, None
    async for row in source.streams.segments_backwards(head):
        if row.sealed and row.end <= copied:
            break
        part, time = await _missing(source, name, row, copied)
        size += part
        oldest = time if time is not None else oldest
    seconds = 0.0 if oldest is None else max(source.now() - oldest, 0) / _US
    return Lag(str(name), copied, end, end - copied, size, round(seconds, 3))


async def _missing(source: Side, name: StreamName, row: Segment, copied: int) -> tuple[int, int | None]:
    """How many bytes of a segment are of records from `copied` on, about, and the append time of the first of them."""
    if row.summary is not None and row.base >= copied:
        return row.summary.bytes, row.summary.first_append
    async with open_segment(source.client, name, row) as reader:
        last = row.summary.last_entry if row.summary is not None else reader.last_confirmed
        if last < 0:
            return 0, None
        entry = await entry_of_offset(name, reader, row, copied, last)
        if entry > last:
            return 0, None
        whole = row.summary.bytes if row.summary is not None else await _bytes_of(reader, last)
        header = entry_header(name, await reader.get(entry))
        return whole * (last + 1 - entry) // (last + 1), header.append_time


async def _bytes_of(reader: Any, last: int) -> int:
    """About how many bytes the entries up to `last` of an open ledger have, by its last one that is not empty."""
    length = getattr(reader, "length", None)
    return int(length) if length else len((await reader.get(last)).payload) * (last + 1)


__all__ = ["Lag", "Progress", "lag_of", "read_progress", "write_progress"]
