"""Snapshots in the head of a machine's log: which are published, and which records of the log they make superfluous.

docs/explanation/machines-design.md has the rules R7 and R8. Not here: what a snapshot's ledger holds
(`core/machine/snapshot_format.py`), other changes of a head (`core/streams/metadata/changes.py`).
"""

from __future__ import annotations

from dataclasses import replace

from buckram.core.streams.metadata.head import Head, SnapshotRow
from buckram.core.streams.records.positions import PositionMark
from buckram.errors import check
from buckram.types import LedgerId


def published(name: str, head: Head, row: SnapshotRow, keep: int) -> Head | None:
    """Return the head with one more snapshot, and with the newest `keep` only; None if this one is there already.

    As soon as there are `keep` of them, the records below the oldest are gone for readers, in the same change.
    """
    rows = head.snapshots
    check(rows is not None, "R7", f"{name} is no machine's log")
    assert rows is not None
    if any(present.ledger == row.ledger for present in rows):
        return None
    check(not rows or rows[-1].offset < row.offset, "R7", f"{name}: snapshot at {row.offset} after {rows[-1:]}")
    rows = (*rows, row)[-keep:]
    earliest = max(head.earliest, rows[0].offset) if len(rows) >= keep else head.earliest
    return replace(head, snapshots=rows, earliest=earliest)


def leapt(name: str, head: Head, row: SnapshotRow, mark: PositionMark) -> Head | None:
    """Continue the mirror of a machine's log at a snapshot, since its source has truncated records that it lacks.

    Its own records are below its earliest offset then, and their effect is in the snapshot. It remembers `mark`, its
    position in the source, in the same change: it has no record there, by which it could be found again. None if it
    lacks none.
    """
    check(head.snapshots is not None and head.open_segment is None, "R7", f"{name} cannot go on at {row}: {head}")
    check(mark.offset == row.offset, "R7", f"{name} cannot go on at {row} with its position at {mark}")
    if row.offset <= head.end:
        return None
    last = max(head.last_append, mark.append_time)
    return replace(head, snapshots=(row,), earliest=row.offset, end=row.offset, last_append=last, mark=mark)


def spared(head: Head) -> int:
    """Return the offset below which no snapshot needs the log; unbounded for a stream that is no machine's log."""
    if head.snapshots is None:
        return 2**63 - 1
    return max(head.earliest, head.snapshots[0].offset) if len(head.snapshots) > 1 else head.earliest


def is_published(head: Head, ledger: LedgerId) -> bool:
    """Return whether the ledger is that of a snapshot in the head."""
    return head.snapshots is not None and any(row.ledger == ledger for row in head.snapshots)


def check_rows(name: str, head: Head) -> None:
    """Check rules R7 and R8 of one head. Raises InvariantViolation."""
    if not head.snapshots:
        return
    offsets = [row.offset for row in head.snapshots]
    check(offsets == sorted(set(offsets)), "R7", f"{name}: snapshots at {offsets}")
    check(head.earliest <= offsets[0], "R8", f"{name}: earliest {head.earliest} is beyond the snapshot at {offsets[0]}")
