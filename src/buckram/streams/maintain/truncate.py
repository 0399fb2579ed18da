"""Truncation: the earliest offset moves at once, to the record; space is freed later, by whole segments.

Ledgers are deleted before their rows leave the list, so a crash leaves rows without a ledger below the earliest offset,
never a ledger without a row. Not here: the offset that a policy asks for (`maintain/retention.py`).
"""

from __future__ import annotations

from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.metadata.changes import is_dead, trimmed, truncated
from buckram.core.streams.metadata.head import Head, Segment
from buckram.core.streams.metadata.purposes import Act, check_act
from buckram.core.streams.names import StreamName
from buckram.errors import VersionConflict
from buckram.streams.maintain.history.table import update_tables_before
from buckram.streams.read.locate import readable_end
from buckram.streams.shared.ledgers import drop_segments
from buckram.streams.shared.metadata import StreamStore
from buckram.types import KeyOp, Offset

_AT_ONCE = 64
_TRIES = 5


async def truncate(client: LedgerClient, streams: StreamStore, name: StreamName, offset: Offset) -> Head:
    """Make the records below `offset` unreadable and return the new head.

    Raises OffsetOutOfRange beyond the readable end, and MachineLog or StreamPurpose by the stream's purpose.
    """
    head = (await streams.read(name)).head
    check_act(str(name), head, Act.TRUNCATE)
    end = head.end
    if offset > end:
        _, end = await readable_end(client, streams, name, offset)
    return await streams.change(name, lambda head: truncated(str(name), head, offset, end), uid=head.uid)


async def offset_keeping(streams: StreamStore, head: Head, keep_bytes: int) -> int:
    """Return the base of the newest segment from which on the segments hold at least `keep_bytes`."""
    kept, offset = 0, head.end
    async for row in streams.segments_backwards(head):
        if kept >= keep_bytes and row.sealed:
            break
        offset = row.base
        kept += row.summary.bytes if row.summary is not None else 0
    return max(offset, head.earliest)


async def trim(client: LedgerClient, streams: StreamStore, name: StreamName, *, at_most: int | None = None) -> int:
    """Delete dead segments, the oldest first, and return how many. It may be stopped and repeated at any point."""
    done = 0
    while at_most is None or done < at_most:
        head = (await streams.read(name)).head
        dead, kept = await dead_rows(streams, head, _AT_ONCE if at_most is None else min(_AT_ONCE, at_most - done))
        if not dead:
            return done
        await update_tables_before(streams, name, head.uid, dead)
        await drop_segments(client, streams, head.uid, dead)
        await _forget(streams, name, head, dead[-1].number + 1, kept)
        done += len(dead)
    return done


async def dead_rows(streams: StreamStore, head: Head, limit: int) -> tuple[list[Segment], Segment | None]:
    """Return the oldest segments that are dead, and the one that leaves the list while its ledger stays.

    That one's ledger holds the producers' table.
    """
    found: list[Segment] = []
    table: Segment | None = None
    kept: Segment | None = None
    async for row in streams.segments(head):
        if is_dead(head, row) and len(found) < limit:
            found.append(row)
            kept = table
        elif row.number == head.producers and row.sealed and row.end <= head.earliest:
            table = row  # It leaves the list only together with a dead segment after it.
        else:
            break
    return found, kept


async def _forget(streams: StreamStore, name: StreamName, head: Head, first: int, kept: Segment | None) -> None:
    """Move the list's first segment number up to `first` and delete the pages wholly below it, in one multi."""
    for left in reversed(range(_TRIES)):
        ops: list[KeyOp] = await streams.trim_ops(head, first)
        step = partial(trimmed, str(name), first=first, kept=kept)
        try:
            await streams.change(name, step, uid=head.uid, extra=partial(_return_ops, ops))
            return
        except VersionConflict:  # A page changed since its version was read.
            if not left:
                raise


def _return_ops(ops: list[KeyOp], _: Head) -> list[KeyOp]:
    return ops
