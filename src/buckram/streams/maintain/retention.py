"""Which offset a stream's policy asks to truncate below, and doing it. Nothing is asked for unless the policy says so.

Age is exact to the record, also in the open segment; size goes by whole segments; cursors are a bound, or with
`retention_consumed` a reason of their own. The janitor calls this; deleting what became dead is truncate.trim.
"""

from __future__ import annotations

from buckram.client.client import Client
from buckram.core.streams.changes import check_usable, truncated
from buckram.core.streams.head import Head
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy
from buckram.errors import NoSuchKey
from buckram.streams.maintain.truncate import offset_keeping
from buckram.streams.read.cursors import lowest_cursor
from buckram.streams.read.locate import known_end, offset_at_time
from buckram.streams.shared.metadata import StreamStore, retry_metadata

_US = 1_000_000


def names_anything(policy: Policy) -> bool:
    """The policy asks for truncation at all."""
    return policy.retention_s is not None or policy.retention_bytes is not None or policy.retention_consumed


async def wanted_earliest(
    client: Client, streams: StreamStore, name: StreamName, head: Head, policy: Policy, now: int | None
) -> int:
    """The offset below which the policy wants nothing kept; at least the present earliest.

    `now`: microseconds UTC; None: the time is in doubt, and nothing goes by age (T2).
    """
    wanted = head.earliest
    if not names_anything(policy):
        return wanted
    if policy.retention_s is not None and now is not None:
        cutoff = now - int(policy.retention_s * _US)
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
    client: Client, streams: StreamStore, name: StreamName, head: Head, policy: Policy, now: int | None
) -> Head:
    """Truncate to what the policy names; the head then."""
    wanted = await wanted_earliest(client, streams, name, head, policy, now)
    if wanted <= head.earliest:
        return head
    end = head.end if wanted <= head.end else await known_end(client, name, head)
    offset = min(wanted, end)
    return await streams.change(name, lambda head: truncated(str(name), head, offset, end), uid=head.uid)


async def all_older(client: Client, name: StreamName, head: Head, policy: Policy) -> bool:
    """The open segment has records and all were truncated by age: a writer that is alive would have rolled by now."""
    segment = head.open_segment
    if segment is None or policy.retention_s is None or head.earliest <= segment.base:
        return False
    return await known_end(client, name, head) <= head.earliest


async def held(streams: StreamStore, uid: str) -> bool:
    """Somebody holds the stream's lease."""
    try:
        await retry_metadata(lambda: streams.keys.get(streams.layout.lease(uid)))
    except NoSuchKey:
        return False
    return True


async def consumed(streams: StreamStore, name: StreamName) -> int:
    """The offset that every cursor has reached; the earliest where there is no cursor."""
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    lowest = await lowest_cursor(streams, head)
    return head.earliest if lowest is None else max(lowest, head.earliest)


async def _may_hold_older(streams: StreamStore, head: Head, cutoff: int) -> bool:
    """Spares the reads of a search where the list alone says that nothing is old enough."""
    try:
        segment = await streams.segment_of(head, head.earliest)
    except NoSuchKey:  # its page was trimmed: older than what stays
        return True
    return segment is not None and segment.created < cutoff


__all__ = ["all_older", "apply_retention", "consumed", "held", "names_anything", "wanted_earliest"]
