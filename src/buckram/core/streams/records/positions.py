"""Positions in a stream that a client remembers, and whether they still mean the same records.

A stream goes back when the metadata of its cluster are restored from a backup: it ends earlier, and other records come
at the offsets that it had given before. A client that remembers a position remembers the record before it as well, and
compares that with the present record there: times of appending never repeat, so that two streams with the same record
at one offset have the same records below it. Pure. Not here: reading records (`replication/positions.py`).
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import NamedTuple

from buckram.core.streams.records.batch import Record
from buckram.types import History, Offset


class PositionMark(NamedTuple):
    """A position in a stream of another cluster, with the record before it and the history in which it was found."""

    offset: Offset
    """Offset of the next record after the position."""
    append_time: int
    """Append time of the record before, microseconds UTC; 0 if there was none."""
    digest: str
    """Digest of the record before, as `record_digest` returns it; empty if it is not known."""
    epoch: int
    """Epoch of the other cluster's metadata history; -1 if it is not known."""
    restore: str
    """Id of that history: each restore begins another one."""


class SeenRecord(NamedTuple):
    """The record before a position."""

    append_time: int
    digest: str


class PresentStream(NamedTuple):
    """Current state of the stream, as far as a position is compared with it."""

    earliest: Offset
    end: Offset
    """The offset after the last record that is readable."""
    live: bool
    """True while a writer has the stream, or died: more may be stored than is readable."""
    sealed_end: Offset
    last_append: int
    """Append time of the last sealed record, microseconds UTC."""
    history: History
    before: SeenRecord | None
    """The record before the position; None if it is not there any more, or not yet."""
    proven: bool = False
    """A snapshot of all that is below the position is the same as when the position was remembered."""


class PositionVerdict(Enum):
    """Result of comparing a remembered position with the stream."""

    SAME = "same"
    """The records below the position are the same as before."""
    SHORTER = "shorter"
    """The stream ends below the position."""
    DIFFERS = "differs"
    """The record before the position is another one."""
    UNKNOWN = "unknown"
    """The metadata have another history, and the records below the position were truncated."""


def record_digest(record: Record) -> str:
    """Return the SHA-256 of all that a reader sees of a record, in hexadecimal digits."""
    value, key = record.value, record.key
    frame = (
        record.offset,
        record.timestamp,
        record.append_time,
        record.txid,
        record.producer,
        record.sequence,
        None if value is None else len(value),
        None if key is None else len(key),
        [(name, len(content)) for name, content in record.headers],
    )
    found = hashlib.sha256(repr(frame).encode())
    for part in (value, key, *(content for _, content in record.headers)):
        found.update(part or b"")
    return found.hexdigest()


def seen(record: Record) -> SeenRecord:
    """Return the append time and digest of a record, which a position remembers."""
    return SeenRecord(record.append_time, record_digest(record))


def mark_of(offset: Offset, before: SeenRecord | None, history: History) -> PositionMark:
    """Return a position with the record before it; `before` is None if that record is not known."""
    time, digest = (0, "") if before is None else before
    return PositionMark(offset, time, digest, history.epoch, history.restore)


def same_history(epoch: int, restore: str, now: History) -> bool:
    """Return whether metadata were not restored since. The first history of a cluster of an older release (epoch 1
    after 0) is no restore.
    """
    return epoch >= 0 and (restore == now.restore or (epoch == 0 and now.epoch == 1))


def compare(mark: PositionMark, now: PresentStream) -> PositionVerdict:
    """Compare a remembered position with the stream as it is now."""
    unchanged = same_history(mark.epoch, mark.restore, now.history)
    if mark.offset > now.end:
        # A live writer's records may have been read before, though it has not published that they are readable yet.
        return PositionVerdict.SAME if unchanged and now.live else PositionVerdict.SHORTER
    if not mark.append_time:
        return PositionVerdict.SAME  # Nothing was copied yet.
    if now.before is not None:
        equal = now.before.append_time == mark.append_time and now.before.digest == (mark.digest or now.before.digest)
        return PositionVerdict.SAME if equal else PositionVerdict.DIFFERS
    if now.proven:
        return PositionVerdict.SAME
    if mark.offset == now.sealed_end and now.last_append:
        return PositionVerdict.SAME if now.last_append == mark.append_time else PositionVerdict.DIFFERS
    return PositionVerdict.SAME if unchanged else PositionVerdict.UNKNOWN
