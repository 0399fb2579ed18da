"""Where the durable log ends, and the claim that a witness outside the directory makes about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from buckram.bookie.storage.segments.segments import Segment


class Position(NamedTuple):
    """The end of the durable log: the number of the log file's use and the offset in it. It only grows."""

    seq: int
    offset: int


class WitnessedPosition(NamedTuple):
    """A witness's record of a directory: its incarnation, how often it was opened, and up to where its log was
    durable."""

    incarnation: str
    starts: int
    position: Position


NO_CLAIM = WitnessedPosition("", 0, Position(0, 0))
"""The claim about a store that is not open: no incarnation has this name."""


def behind(segments: Iterable[Segment], next_number: int, position: Position) -> str | None:
    """Return what is missing of a log that was durable up to `position` once; None if nothing is.

    A number below `next_number` that no log file has any more belonged to a file that compaction replaced.
    """
    if position.seq >= next_number:
        return f"log file number {position.seq} was written, the directory knows numbers below {next_number} only"
    for segment in segments:
        if segment.seq == position.seq and segment.log_end < position.offset:
            return f"log file {segment.name} ends at {segment.log_end}, it was durable up to {position.offset}"
    return None
