"""Orphans: ledgers that name a stream as their owner although no stream lists them and no process is about to.

They are found by comparing all ledgers with all streams, and the order of reading makes the answer certain: first the
ledgers, then intents, then lists, then intents again. A ledger gets its intent before it exists and loses it in the
step that lists it. It leaves a list after it was deleted, or, when a compacted copy replaces it, in a step that gives
it an intent again. So a ledger that has no intent and afterwards is in no list will never be in one; and if it still
has no intent then, no reader uses it. A ledger that another stream holds is none: a fork lists it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.names import StreamName, owner_of
from buckram.errors import InvalidArgument, MalformedRecord, NoSuchLedger, NoSuchStream
from buckram.streams.shared.ledgers import let_go, read_intent
from buckram.streams.shared.metadata import StreamStore, retry_metadata
from buckram.streams.shared.shared_ledgers import holders
from buckram.types import LedgerId

_PAGE = 1000
_AT_ONCE = 64
Reason = Literal["discarded", "stream deleted", "in progress"]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A ledger that its stream does not list. `age_s` is the time since its creation; None if that is not known.

    Reasons: `discarded`, the stream exists and will never list it; `stream deleted`, the stream does not exist any
    more; `in progress`, it has an intent, so a process may be about to list it, and the janitor decides. Ledgers of the
    first two are safe to delete.
    """

    ledger: LedgerId
    stream: str
    uid: str
    reason: Reason
    age_s: float | None

    @property
    def safe(self) -> bool:
        """Return whether the ledger may be deleted."""
        return self.reason != "in progress"


@dataclass(frozen=True, slots=True)
class Marked:
    """A ledger whose custom metadata names the stream that it was made for."""

    ledger: LedgerId
    stream: str
    uid: str
    created_ms: int | None


async def find_orphans(client: LedgerClient, streams: StreamStore, *, in_progress: bool = False) -> list[Orphan]:
    """Return all orphans in the order of ledger ids; with `in_progress` also ledgers that have an intent.

    It reads the metadata of every ledger.
    """
    marked = [item async for item in _marked(client)]
    pending = await find_with_intents(streams, marked)
    return await judge_orphans(client, streams, marked, pending, in_progress=in_progress)


async def find_with_intents(streams: StreamStore, marked: Sequence[Marked]) -> dict[LedgerId, None]:
    """Return those that have an intent now. This is the second reading: the ledgers must have been listed before."""
    pending: dict[LedgerId, None] = {}
    for begin in range(0, len(marked), _AT_ONCE):
        part = marked[begin : begin + _AT_ONCE]
        answers = await asyncio.gather(*(_has_intent(streams, item) for item in part))
        pending |= {item.ledger: None for item, has in zip(part, answers, strict=True) if has}
    return pending


async def judge_orphans(
    client: LedgerClient,
    streams: StreamStore,
    marked: Sequence[Marked],
    pending: Mapping[LedgerId, None],
    *,
    in_progress: bool,
) -> list[Orphan]:
    """Read the lists, then intents again, and return which ledgers are orphans; `pending` had an intent before."""
    if not marked:
        return []
    heads = await _names_by_uid(streams)
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
        if (ledgers is None or item.ledger not in ledgers) and await _is_held(streams, item):
            continue
        if ledgers is None:
            found.append(Orphan(item.ledger, item.stream, item.uid, "stream deleted", age))
        elif item.ledger not in ledgers:
            # Compaction may have taken it out of the list since intents were read first.
            retired = await _has_intent(streams, item)
            if in_progress or not retired:
                reason: Reason = "in progress" if retired else "discarded"
                found.append(Orphan(item.ledger, item.stream, item.uid, reason, age))
    return found


async def delete_orphan(client: LedgerClient, orphan: Orphan) -> None:
    """Delete an orphan; no-op if it does not exist any more. InvalidArgument if it is not safe to delete."""
    if not orphan.safe:
        raise InvalidArgument(
            f"ledger {orphan.ledger} of stream {orphan.stream} may still be listed; `buckram stream janitor` knows when"
        )
    await let_go(client, StreamStore(client.services.store), orphan.uid, orphan.ledger)


async def _marked(client: LedgerClient) -> AsyncIterator[Marked]:
    after = -1
    while page := await retry_metadata(partial(client.services.store.list_ledgers, after=after, limit=_PAGE)):
        for found in await read_owners(client, page):
            yield found
        after = page[-1]


async def read_owners(client: LedgerClient, ledgers: Sequence[LedgerId]) -> list[Marked]:
    """Return those of the ledgers that were made for a stream."""
    found: list[Marked] = []
    for begin in range(0, len(ledgers), _AT_ONCE):
        answers = await asyncio.gather(*(_owner(client, ledger) for ledger in ledgers[begin : begin + _AT_ONCE]))
        found += [answer for answer in answers if answer is not None]
    return found


async def _owner(client: LedgerClient, ledger: LedgerId) -> Marked | None:
    try:
        metadata = (await retry_metadata(lambda: client.services.store.read_ledger(ledger))).metadata
    except (NoSuchLedger, MalformedRecord):
        return None  # It was deleted, or its metadata is unreadable and names no owner.
    owner = owner_of(metadata.custom_metadata)
    return None if owner is None else Marked(ledger, *owner, metadata.creation_time_ms)


async def _has_intent(streams: StreamStore, item: Marked) -> bool:
    try:
        return await retry_metadata(lambda: read_intent(streams, item.uid, item.ledger)) is not None
    except (MalformedRecord, InvalidArgument):
        return True  # The intent or the uid is malformed, so the ledger is not safe to delete.


async def _is_held(streams: StreamStore, item: Marked) -> bool:
    """Return whether another stream (a fork) holds the ledger, which was made for this one."""
    return any(uid != item.uid for uid in await holders(streams, item.ledger))


async def _names_by_uid(streams: StreamStore) -> dict[str, StreamName]:
    """Return the name of every stream by its uid, including streams that are being deleted."""
    found: dict[str, StreamName] = {}
    async for name in all_streams(streams):
        try:
            found[(await streams.read(name)).head.uid] = name
        except NoSuchStream:
            continue
    return found


async def all_streams(streams: StreamStore) -> AsyncIterator[StreamName]:
    """Yield the name of every stream of every namespace, in order."""
    async for space in children_of(streams, streams.layout.all_heads):
        async for stream in children_of(streams, streams.layout.heads(space)):
            yield StreamName(space, stream)


async def children_of(streams: StreamStore, parent: str) -> AsyncIterator[str]:
    """Yield the names of all children of a key, in order."""
    after = ""
    while names := await retry_metadata(partial(streams.keys.children, parent, after=after, limit=_PAGE)):
        for child in names:
            yield child
        after = names[-1]


async def _listed(streams: StreamStore, name: StreamName, uid: str) -> dict[LedgerId, None] | None:
    """Return the ledgers in the stream's list, its producers' table and its garbage; None if it was deleted."""
    found: dict[LedgerId, None] = {}
    try:
        head = (await streams.read(name)).head
        if head.uid != uid:
            return None
        found |= dict.fromkeys(head.garbage)
        async for row in streams.segments(head):
            found[row.ledger] = None
        # The head's table is read last, because a row may have moved there from a page that was trimmed meanwhile.
        head = (await streams.read(name)).head
    except NoSuchStream:
        return None
    if head.uid != uid:
        return None
    if head.table is not None:
        found[head.table.ledger] = None
    return found
