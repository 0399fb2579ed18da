"""Orphans: ledgers that name a stream as their owner, but no stream lists them and nobody is about to.

Found by comparing all ledgers with all streams. The order of the looks makes the answer certain: ledgers first, then
intents, then lists, then intents. A ledger gets its intent before it exists, loses it in the step that lists it, and
leaves a list after it was deleted or, when a compacted copy takes its place, in a step that gives it an intent again;
so one that has no intent and then is in no list will never be in one, and if it still has none nobody reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from buckram.client.client import Client
from buckram.core.streams.names import StreamName, owner_of
from buckram.errors import InvalidArgument, MalformedRecord, NoSuchLedger, NoSuchStream
from buckram.streams.shared.ledgers import drop_ledger, read_intent
from buckram.streams.shared.metadata import StreamStore, retry_metadata
from buckram.types import LedgerId

_PAGE = 1000
_AT_ONCE = 64
Reason = Literal["discarded", "stream deleted", "in progress"]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A ledger without a place in its stream. `age_s` since it was created; None if that is not known.

    `discarded`: the stream exists and will never list it. `stream deleted`: there is no such stream any more. Both are
    safe to delete. `in progress`: it has an intent, so somebody may be about to list it; the janitor decides.
    """

    ledger: LedgerId
    stream: str
    uid: str
    reason: Reason
    age_s: float | None

    @property
    def safe(self) -> bool:
        return self.reason != "in progress"


@dataclass(frozen=True, slots=True)
class Marked:
    """A ledger that was made for a stream."""

    ledger: LedgerId
    stream: str
    uid: str
    created_ms: int | None


async def find_orphans(client: Client, streams: StreamStore, *, in_progress: bool = False) -> list[Orphan]:
    """All orphans, by ledger. `in_progress`: also ledgers that have an intent. Reads the record of every ledger."""
    marked = [item async for item in _marked(client)]
    pending = await with_intents(streams, marked)
    return await judged(client, streams, marked, pending, in_progress=in_progress)


async def with_intents(streams: StreamStore, marked: Sequence[Marked]) -> dict[LedgerId, None]:
    """Those that have an intent now: the second look. The ledgers were listed before."""
    pending: dict[LedgerId, None] = {}
    for begin in range(0, len(marked), _AT_ONCE):
        part = marked[begin : begin + _AT_ONCE]
        answers = await asyncio.gather(*(_has_intent(streams, item) for item in part))
        pending |= {item.ledger: None for item, has in zip(part, answers, strict=True) if has}
    return pending


async def judged(
    client: Client,
    streams: StreamStore,
    marked: Sequence[Marked],
    pending: Mapping[LedgerId, None],
    *,
    in_progress: bool,
) -> list[Orphan]:
    """The looks after that of intents: which of them are orphans."""
    if not marked:
        return []
    heads = await _all_streams(streams)
    listed: dict[str, dict[LedgerId, None] | None] = {}
    now_ms = client.services.runtime.clock.wall_us() // 1000
    found: list[Orphan] = []
    for item in marked:
        if item.ledger not in pending and item.uid not in listed:
            name = heads.get(item.uid)
            listed[item.uid] = None if name is None else await _listed(streams, name, item.uid)
        age = None if item.created_ms is None else (now_ms - item.created_ms) / 1000
        if item.ledger in pending:
            if in_progress:
                found.append(Orphan(item.ledger, item.stream, item.uid, "in progress", age))
            continue
        ledgers = listed[item.uid]
        if ledgers is None:
            found.append(Orphan(item.ledger, item.stream, item.uid, "stream deleted", age))
        elif item.ledger not in ledgers:
            # Compaction may have taken it out of the list since the first look at intents.
            retired = await _has_intent(streams, item)
            if in_progress or not retired:
                reason: Reason = "in progress" if retired else "discarded"
                found.append(Orphan(item.ledger, item.stream, item.uid, reason, age))
    return found


async def delete_orphan(client: Client, orphan: Orphan) -> None:
    """Delete one that is safe to delete; one that is gone is fine."""
    if not orphan.safe:
        raise InvalidArgument(
            f"ledger {orphan.ledger} of stream {orphan.stream} may still be listed; `buckram stream janitor` knows when"
        )
    await drop_ledger(client, orphan.ledger)


async def _marked(client: Client) -> AsyncIterator[Marked]:
    after = -1
    while page := await retry_metadata(partial(client.services.store.list_ledgers, after=after, limit=_PAGE)):
        for found in await owners(client, page):
            yield found
        after = page[-1]


async def owners(client: Client, ledgers: Sequence[LedgerId]) -> list[Marked]:
    """Which of these ledgers were made for a stream, and for which."""
    found: list[Marked] = []
    for begin in range(0, len(ledgers), _AT_ONCE):
        answers = await asyncio.gather(*(_owner(client, ledger) for ledger in ledgers[begin : begin + _AT_ONCE]))
        found += [answer for answer in answers if answer is not None]
    return found


async def _owner(client: Client, ledger: LedgerId) -> Marked | None:
    try:
        metadata = (await retry_metadata(lambda: client.services.store.read_ledger(ledger))).metadata
    except (NoSuchLedger, MalformedRecord):
        return None  # one that cannot be read is nobody's orphan
    owner = owner_of(metadata.custom_metadata)
    return None if owner is None else Marked(ledger, *owner, metadata.creation_time_ms)


async def _has_intent(streams: StreamStore, item: Marked) -> bool:
    try:
        return await retry_metadata(lambda: read_intent(streams, item.uid, item.ledger)) is not None
    except (MalformedRecord, InvalidArgument):
        return True  # unreadable, or a uid that is none: not to be touched


async def _all_streams(streams: StreamStore) -> dict[str, StreamName]:
    """uid -> name of every stream, also those that are being deleted."""
    found: dict[str, StreamName] = {}
    async for name in all_names(streams):
        try:
            found[(await streams.read(name)).head.uid] = name
        except NoSuchStream:
            continue
    return found


async def all_names(streams: StreamStore) -> AsyncIterator[StreamName]:
    """Every stream of every namespace, in order."""
    async for space in children_of(streams, streams.layout.all_heads):
        async for stream in children_of(streams, streams.layout.heads(space)):
            yield StreamName(space, stream)


async def children_of(streams: StreamStore, parent: str) -> AsyncIterator[str]:
    after = ""
    while names := await retry_metadata(partial(streams.keys.children, parent, after=after, limit=_PAGE)):
        for child in names:
            yield child
        after = names[-1]


async def _listed(streams: StreamStore, name: StreamName, uid: str) -> dict[LedgerId, None] | None:
    """Ledgers of the stream's list, table and garbage; None when it is gone."""
    found: dict[LedgerId, None] = {}
    try:
        head = (await streams.read(name)).head
        if head.uid != uid:
            return None
        found |= dict.fromkeys(head.garbage)
        async for row in streams.segments(head):
            found[row.ledger] = None
        # Looked at last: a row may have moved there from a page that was gone by the time we came to it.
        head = (await streams.read(name)).head
    except NoSuchStream:
        return None
    if head.uid != uid:
        return None
    if head.table is not None:
        found[head.table.ledger] = None
    return found


__all__ = [
    "Marked",
    "Orphan",
    "all_names",
    "delete_orphan",
    "find_orphans",
    "judged",
    "owners",
    "with_intents",
]
