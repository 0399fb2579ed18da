"""Truncation: the earliest offset moves at once, to the record; space is freed later, by whole segments. A stream's
policy may ask for it.

Ledgers are deleted before their rows leave the list, so a crash leaves rows without a ledger below the earliest offset,
never a ledger without a row.

By age a stream is truncated to the record, also in the open segment; by size it is truncated by whole segments. Cursors
are a lower bound, or with `retention_consumed` the reason for truncation. A policy that names nothing truncates
nothing. Not here: the rounds (`janitor.py`).
"""

from __future__ import annotations

from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.core.cluster.wall_time import APART_US
from buckram.core.streams.metadata.changes import check_usable, is_dead, trimmed, truncated
from buckram.core.streams.metadata.head import Head, Segment
from buckram.core.streams.metadata.purposes import Act, check_act
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy
from buckram.errors import NoSuchKey, NoSuchLedger, VersionConflict
from buckram.streams.maintain.history.table import update_tables_before
from buckram.streams.read.cursors import lowest_cursor
from buckram.streams.read.locate import known_end, offset_at_time, readable_end
from buckram.streams.shared.ledgers import drop_segments
from buckram.streams.shared.metadata import StreamStore, retry_metadata
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


_US = 1_000_000


def asks_for_truncation(policy: Policy) -> bool:
    """Return whether the policy asks for any truncation."""
    return policy.retention_s is not None or policy.retention_bytes is not None or policy.retention_consumed


async def wanted_earliest(
    client: LedgerClient, streams: StreamStore, name: StreamName, head: Head, policy: Policy, now: int | None
) -> int:
    """Return the offset below which the policy wants nothing kept; at least the present earliest offset.

    `now` is in microseconds UTC, or None while the time is in doubt: then nothing is truncated by age (T2).
    """
    wanted = head.earliest
    if not asks_for_truncation(policy):
        return wanted
    if policy.retention_s is not None and now is not None:
        cutoff = now - int(policy.retention_s * _US)
        if head.last_append - now > APART_US:
            wanted = await _end_of_old_segments(streams, head, now, cutoff)
        if await _may_hold_older(streams, head, cutoff):
            wanted = max(wanted, await offset_at_time(client, streams, name, head, cutoff))
    if policy.retention_bytes is not None:
        wanted = max(wanted, await offset_keeping(streams, head, policy.retention_bytes))
    if policy.retention_consumed or (policy.retention_cursors and wanted > head.earliest):
        lowest = await lowest_cursor(streams, head)
        if lowest is not None and policy.retention_consumed:
            wanted = max(wanted, lowest)
        if lowest is not None and policy.retention_cursors:
            wanted = min(wanted, lowest)
    return max(wanted, head.earliest)


async def apply_retention(
    client: LedgerClient, streams: StreamStore, name: StreamName, head: Head, policy: Policy, now: int | None
) -> Head:
    """Truncate as the policy asks (`now` as in wanted_earliest) and return the head after it."""
    wanted = await wanted_earliest(client, streams, name, head, policy, now)
    if wanted <= head.earliest:
        return head
    end = head.end if wanted <= head.end else await known_end(client, name, head)
    offset = min(wanted, end)
    return await streams.change(name, lambda head: truncated(str(name), head, offset, end), uid=head.uid)


async def all_older(client: LedgerClient, name: StreamName, head: Head, policy: Policy) -> bool:
    """Return whether the open segment has records and all were truncated by age.

    A live writer would have rolled by then, so the janitor seals the segment.
    """
    segment = head.open_segment
    if segment is None or policy.retention_s is None or head.earliest <= segment.base:
        return False
    return await known_end(client, name, head) <= head.earliest


async def is_lease_held(streams: StreamStore, uid: str) -> bool:
    """Return whether some writer holds the stream's lease."""
    try:
        await retry_metadata(lambda: streams.keys.get(streams.layout.lease(uid)))
    except NoSuchKey:
        return False
    return True


async def offset_passed_by_all(streams: StreamStore, name: StreamName) -> int:
    """Return the offset that every cursor has reached; the earliest offset if there is no cursor."""
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    lowest = await lowest_cursor(streams, head)
    return head.earliest if lowest is None else max(lowest, head.earliest)


async def _end_of_old_segments(streams: StreamStore, head: Head, now: int, cutoff: int) -> int:
    """Return the end of the last segment that is certainly older than `cutoff` although it is stamped later than now.

    Append times never go back, so after a clock that was ahead they are useless until time has caught up with them. But
    records are older than the ledger of a segment that follows.
    """
    wanted, before = head.earliest, None
    async for row in streams.segments(head):
        if before is not None and before.end > head.earliest and _is_ahead(before, now):
            created = await _created(streams, row)
            if created is not None and created < cutoff:
                wanted = before.end
            elif created is not None and created <= now:
                break  # what follows is younger
        before = row if row.sealed else None
    return wanted


def _is_ahead(row: Segment, now: int) -> bool:
    return row.summary is not None and row.summary.last_append - now > APART_US


async def _created(streams: StreamStore, row: Segment) -> int | None:
    """Return when a segment's ledger was made, in microseconds UTC; None if that is not known any more."""
    try:
        metadata = (await retry_metadata(partial(streams.metadata.read_ledger, row.ledger))).metadata
    except NoSuchLedger:
        return None
    return None if metadata.creation_time_ms is None else metadata.creation_time_ms * 1000


async def _may_hold_older(streams: StreamStore, head: Head, cutoff: int) -> bool:
    """Return whether the list alone allows records older than `cutoff`; if not, no entry needs to be read."""
    try:
        segment = await streams.segment_of(head, head.earliest)
    except NoSuchKey:  # The page of the segment was trimmed since the head was read; the search decides.
        return True
    return segment is not None and segment.created < cutoff
