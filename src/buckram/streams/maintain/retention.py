"""Retention: the offset below which a stream's policy asks for truncation, and the truncation itself.

By age a stream is truncated to the record, also in the open segment; by size it is truncated by whole segments. Cursors
are a lower bound, or with `retention_consumed` the reason for truncation. A policy that names nothing truncates
nothing. Not here: deleting segments that became dead (`maintain/truncate.py`), the rounds (`maintain/janitor.py`).
"""

from __future__ import annotations

from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.core.cluster.wall_time import APART_US
from buckram.core.streams.metadata.changes import check_usable, truncated
from buckram.core.streams.metadata.head import Head, Segment
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy
from buckram.errors import NoSuchKey, NoSuchLedger
from buckram.streams.maintain.truncate import offset_keeping
from buckram.streams.read.cursors import lowest_cursor
from buckram.streams.read.locate import known_end, offset_at_time
from buckram.streams.shared.metadata import StreamStore, retry_metadata

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
