"""Positions in a stream that somebody remembers, and whether they still mean the same records.

A stream goes back when the metadata of its cluster are restored from a backup: it ends earlier, and other records come
at the offsets that it had given before. Who remembers a position remembers the record before it as well, and compares
that with what the stream has there now: times of appending never repeat, so that two streams with the same record at
one offset have the same records below it. Pure. Not here: reading records (`replication/positions.py`).
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import NamedTuple

from buckram.core.streams.batch import Record
from buckram.types import History, Offset


class Mark(NamedTuple):
    """A position in a stream of another cluster, with the record before it and the history in which it was found."""

    offset: Offset
    """The next record; the one before it is known here."""
    append_time: int
    """Of the record before, microseconds UTC; 0 if there was none."""
    digest: str
    """Of the record before, as `record_digest` returns it; empty if it is not known."""
    epoch: int
    """Of the history of the other cluster's metadata; -1 if it is not known."""
    restore: str
    """Of that history: each restore begins another one."""


class Seen(NamedTuple):
    """The record before a position."""

    append_time: int
    digest: str


class Present(NamedTuple):
    """What the stream is now, for a position."""

    earliest: Offset
    end: Offset
    """The offset after the last record that is readable."""
    live: bool
    """A writer has it, or died; more may be stored than is readable."""
    sealed_end: Offset
    last_append: int
    """Of the last sealed record, microseconds UTC."""
    history: History
    before: Seen | None
    """The record before the position; None if it is not there any more, or not yet."""
    proven: bool = False
    """A snapshot of all that is below the position is the same as when the position was remembered."""


class Verdict(Enum):
    """What has become of a position."""

    SAME = "same"
    """What is below it is what it was."""
    SHORTER = "shorter"
    """The stream ends below it."""
    DIFFERS = "differs"
    """The record before it is another one."""
    UNKNOWN = "unknown"
    """The metadata have another history, and what is below it was truncated."""


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


def seen(record: Record) -> Seen:
    """Return what is remembered of a record."""
    return Seen(record.append_time, record_digest(record))


def mark_of(offset: Offset, before: Seen | None, history: History) -> Mark:
    """Return a position with the record before it; None: nothing is known of that."""
    time, digest = (0, "") if before is None else before
    return Mark(offset, time, digest, history.epoch, history.restore)


def same_history(epoch: int, restore: str, now: History) -> bool:
    """Whether metadata were not restored since. A cluster of an older release gets its first history without that."""
    return epoch >= 0 and (restore == now.restore or (epoch == 0 and now.epoch == 1))


def compare(mark: Mark, now: Present) -> Verdict:
    """Compare a position that somebody remembers with what the stream is now."""
    unchanged = same_history(mark.epoch, mark.restore, now.history)
    if mark.offset > now.end:
        # What a writer has sent and nobody has told to be readable yet may have been read before.
        return Verdict.SAME if unchanged and now.live else Verdict.SHORTER
    if not mark.append_time:
        return Verdict.SAME  # Nothing was copied yet.
    if now.before is not None:
        equal = now.before.append_time == mark.append_time and now.before.digest == (mark.digest or now.before.digest)
        return Verdict.SAME if equal else Verdict.DIFFERS
    if now.proven:
        return Verdict.SAME
    if mark.offset == now.sealed_end and now.last_append:
        return Verdict.SAME if now.last_append == mark.append_time else Verdict.DIFFERS
    return Verdict.SAME if unchanged else Verdict.UNKNOWN


__all__ = ["Mark", "Present", "Seen", "Verdict", "compare", "mark_of", "record_digest", "same_history", "seen"]
