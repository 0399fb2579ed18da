"""Streams at rest: those that a janitor which runs permanently passes over, as nothing can have become due at them.

A pass over thousands of idle streams costs one listing of their heads. A stream rests after a look that found nothing
to do, for a time that its policy's ages bound, and only as long as its head and its namespace's policy stay the same;
the head has its uid, for a name may have come to mean another stream. What changes without the head (intents of a bulk
step, a lease) waits for the end of the rest at most. Not here: what is done at a stream (`janitor.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from buckram.core.streams.metadata.head import Head
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy
from buckram.streams.maintain.orphans import children_of
from buckram.streams.shared.metadata import StreamStore, retry_metadata
from buckram.types import KeyValue

REST_S = 300.0
"""Longest time between two looks at a stream, seconds."""
_PART_OF_AGE = 0.1
"""Part of the shortest age in a policy by which something may be done later."""
_LEAST_S = 10.0
_PAGE = 1000


async def listed_heads(streams: StreamStore) -> AsyncIterator[tuple[StreamName, KeyValue]]:
    """Yield the name of every stream of every namespace, in order, with the head as it was when it was listed."""
    async for space in children_of(streams, streams.layout.all_heads):
        parent, after = streams.layout.heads(space), ""
        list_page = partial(streams.keys.children_with_values, parent, limit=_PAGE)
        while page := await retry_metadata(partial(list_page, after=after)):
            for name, found in page:
                yield StreamName(space, name), found
            after = page[-1][0]


def rest_s(head: Head, policy: Policy) -> float:
    """Return for how many seconds nothing can become due at a stream where a look found nothing to do; 0: always look.

    `policy`: the stream's, over its namespace's. A writer, and cursors that hold records, change without the head.
    """
    if head.open_segment is not None or head.garbage or head.deleting or head.incomplete:
        return 0.0
    if not head.tail and not head.paged:
        return REST_S
    if policy.retention_cursors or policy.retention_consumed:
        return 0.0
    ages = (policy.retention_s, policy.offload_after_s, policy.backup_every_s)
    shortest = min([REST_S, *(age * _PART_OF_AGE for age in ages if age)])
    return shortest if shortest >= _LEAST_S else 0.0


class _Rest(NamedTuple):
    uid: str
    seen: int
    """Of the head's version and value."""
    policy: Mapping[str, Any]
    until: float


class RestingStreams:
    """What is known of streams at rest; times are those of a monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._rests: dict[StreamName, _Rest] = {}

    def uid(self, name: StreamName, found: KeyValue, policy: Mapping[str, Any], now: float) -> str | None:
        """Return the uid of a stream that rests, None of one that is to be looked at.

        `found`: its head as it is stored now. `policy`: its namespace's.
        """
        rest = self._rests.get(name)
        if rest is None or now >= rest.until or rest.seen != _mark(found) or rest.policy != policy:
            return None
        return rest.uid

    def let_rest(self, name: StreamName, uid: str, found: KeyValue, policy: Mapping[str, Any], until: float) -> None:
        """Pass over a stream until then, or until its head or its namespace's policy changes."""
        self._rests[name] = _Rest(uid, _mark(found), policy, until)

    def keep(self, uids: Mapping[str, None]) -> None:
        """Forget the streams that no longer exist."""
        self._rests = {name: rest for name, rest in self._rests.items() if rest.uid in uids}


def _mark(found: KeyValue) -> int:
    return hash((found.version, found.value))
