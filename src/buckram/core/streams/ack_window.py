"""Offsets of a writer that may be acknowledged: over one segment, and across a roll to the next.

A segment's records count as stored when its ledger has acknowledged them, but they may be acknowledged to callers only
when the segment is listed, and not before every record of the segment before it. Sending and listing are the writer's.
"""

from __future__ import annotations

from buckram.errors import check, invariant_failed
from buckram.types import Offset


class SegmentProgress:
    """One segment of the writer: offsets sent to its ledger, and up to where the ledger acknowledged them."""

    __slots__ = ("acked", "base", "listed", "sent")

    def __init__(self, base: int) -> None:
        self.base = self.sent = self.acked = base
        self.listed = False


class StreamWindow:
    """Offsets of at most two segments: the listed one and its successor, which takes records but releases none."""

    def __init__(self, next_offset: Offset) -> None:
        self.next_offset = next_offset
        """Offset of the next record."""
        self.released = next_offset
        """All records below may be acknowledged."""
        self._segments: list[SegmentProgress] = []

    @property
    def complete(self) -> bool:
        """Return whether the oldest segment's ledger has acknowledged all that was sent to it."""
        return not self._segments or self._segments[0].acked == self._segments[0].sent

    @property
    def pending(self) -> int:
        """Return the number of records that are not released."""
        return self.next_offset - self.released

    def begin(self) -> SegmentProgress:
        """Begin a new segment, which is not listed yet; later records go to it."""
        check(len(self._segments) < 2, "M9", "a second roll before the first has ended")
        progress = SegmentProgress(self.next_offset)
        self._segments.append(progress)
        return progress

    def take(self, count: int) -> int:
        """Return the first of `count` new offsets, in the newest segment."""
        first = self.next_offset
        self.next_offset = self._segments[-1].sent = first + count
        return first

    def acked(self, segment: SegmentProgress, next_offset: Offset) -> bool:
        """Note that the segment's ledger acknowledged all below `next_offset`; return whether `released` moved."""
        if not segment.acked <= next_offset <= segment.sent:  # not by `check`: this runs for each entry
            invariant_failed("S9", f"acknowledged {next_offset} of {segment.sent}")
        segment.acked = next_offset
        return self._release()

    def listed(self, segment: SegmentProgress) -> bool:
        """Note that one compare-and-set sealed the segment before and listed this one; return if `released` moved."""
        if segment is not self._segments[0]:
            check(self.complete, "M9", "listed before the segment before it was complete")
            del self._segments[0]
        segment.listed = True
        return self._release()

    def cut(self, segment: SegmentProgress, end: int) -> None:
        """Cut the oldest segment at `end`, where it turned out to end: later records are neither in it nor in its
        successor.
        """
        check(self._segments[0] is segment, "M9", "a segment ended that is not the oldest")
        counts = f"{segment.acked} acknowledged, {end} stored, {segment.sent} sent"
        check(segment.acked <= end <= segment.sent, "S9", counts)
        del self._segments[1:]
        self.next_offset = segment.sent = segment.acked = end

    def jump(self, next_offset: Offset) -> None:
        """Go on at a higher offset: another writer's records lie between the earlier segments and the next one."""
        check(self.released == self.next_offset <= next_offset, "S9", f"{self.next_offset} before {next_offset}")
        self._segments.clear()
        self.next_offset = self.released = next_offset

    def _release(self) -> bool:
        oldest = self._segments[0]
        if not oldest.listed or oldest.acked <= self.released:
            return False
        self.released = oldest.acked
        return True
