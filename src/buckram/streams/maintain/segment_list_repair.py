"""Repairs of segment lists: what a restore brought back is dropped, and ledgers of other software are adopted.

Truncation, compaction and deletion delete ledgers; a list that a backup brings back names them again, so a stream that
lists segments deleted since the backup begins after them. All releases mark a ledger with its owner when they create
it. A ledger without that mark was made by other software and put into the segment list by hand, and servers leave it
alone (`streams/shared/ownership.py`), until an administrator has it marked as the stream's own. Not here: which ledgers
are deleted again (`metadata/maintain/acceptance.py`); a reader that meets such a segment
(`streams/read/batch_source.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from buckram.client.ledger_client import LedgerClient
from buckram.core.ledgers.deletions import NONE_DELETED, Deleted, bucket_of
from buckram.core.security.namespace_rules import LEDGER_NAMESPACE
from buckram.core.streams.metadata.changes import HeadStep, check_usable, sealed, truncated
from buckram.core.streams.metadata.head import HISTORY, LEDGER, Head, Segment
from buckram.core.streams.metadata.purposes import Purpose, purpose_of
from buckram.core.streams.names import StreamName, owner_mark, owner_of
from buckram.errors import NoSuchLedger, NoSuchStream, StreamError, VersionConflict
from buckram.metadata.tree.removals import all_recorded, is_gone
from buckram.streams.maintain.orphans import all_streams
from buckram.streams.shared.ledgers import SEGMENT
from buckram.streams.shared.metadata import Change, StreamStore, retry_metadata
from buckram.streams.shared.recovery import EMPTY
from buckram.types import LedgerId, Offset

# -- after a restore --------------------------------------------------------------------------------------


class LackingRecords(NamedTuple):
    """Records `first` to `end` - 1 of a stream whose segments were deleted; `end` is None for an open segment.

    `dropped`: the stream does not list them any more. Otherwise there are records before them, or the stream is a log
    that only its owner truncates: a reader of them gets OffsetTruncated or NoSuchLedger.
    """

    stream: str
    first: Offset
    end: Offset | None
    dropped: bool


async def begin_after_deleted(streams: StreamStore) -> list[LackingRecords]:
    """Have each stream begin after the segments at its beginning whose ledgers were deleted, and end before an open one
    that was; return what every stream lacks.

    What was deleted is read from the record of deletions, so that a call completes what one that died has begun. No
    stream may have a writer. MetadataError.
    """
    deleted, found = await all_recorded(streams.metadata), list[LackingRecords]()
    if not deleted:
        return found
    async for name in all_streams(streams):
        try:
            head = (await streams.read(name)).head
            rows = [row async for row in streams.segments(head) if not row.sealed or row.end > head.earliest]
            dead = [row for row in rows if row.kind == LEDGER and await _is_deleted(streams, row.ledger, deleted)]
            found += await _one(streams, name, head, rows, dead)
        except NoSuchStream:
            continue
    return found


async def _is_deleted(streams: StreamStore, ledger: LedgerId, deleted: Mapping[int, Deleted]) -> bool:
    """Return whether a ledger's deletion is recorded and it was not made again since."""
    return ledger in deleted.get(bucket_of(ledger), NONE_DELETED) and await is_gone(streams.metadata, ledger)


async def _one(
    streams: StreamStore, name: StreamName, head: Head, rows: list[Segment], dead: list[Segment]
) -> list[LackingRecords]:
    lacking: list[LackingRecords] = []
    for row in dead:
        first, end = max(row.base, head.earliest), row.end if row.sealed else None
        if lacking and end is not None and lacking[-1].end == first:
            first = lacking.pop().first
        lacking.append(LackingRecords(str(name), first, end, dropped=False))
    if not dead or purpose_of(str(name), head) is not Purpose.RECORDS:
        return lacking
    if dead[0] == rows[0] and (offset := lacking[0].end) is not None:
        step = partial(_begin_at, str(name), offset=offset)
        lacking[0] = lacking[0]._replace(dropped=await _changed(streams, name, head, step))
    if not dead[-1].sealed and head.earliest <= dead[-1].base:
        step = partial(sealed, str(name), epoch=head.epoch, ledger=dead[-1].ledger, summary=EMPTY)
        lacking[-1] = lacking[-1]._replace(dropped=await _changed(streams, name, head, step))
    return lacking


def _begin_at(name: str, head: Head, *, offset: Offset) -> HeadStep | None:
    return truncated(name, head, offset, head.end)


async def _changed(streams: StreamStore, name: StreamName, head: Head, change: Change) -> bool:
    """Change a head; return False if the stream is being deleted, or a writer has it already."""
    try:
        await streams.change(name, change, uid=head.uid)
    except StreamError:
        return False
    return True


# -- adoption ---------------------------------------------------------------------------------------------


async def adopt_ledgers(client: LedgerClient, streams: StreamStore, name: StreamName) -> list[LedgerId]:
    """Mark as the stream's own each ledger of its list, and of its garbage, whose record names no stream and no
    namespace; returns them. It may be repeated. NoSuchStream, MetadataUnavailable, and AccessRefused for a user whose
    access is limited by grants."""
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    ledgers = [row.ledger async for row in streams.segments(head) if row.kind != HISTORY]
    ledgers += [*head.garbage, *([head.table.ledger] if head.table is not None else ())]
    mark = owner_mark(name, head.uid, SEGMENT)
    return [ledger for ledger in ledgers if await _adopt(client, ledger, mark)]


async def _adopt(client: LedgerClient, ledger: LedgerId, mark: dict[str, bytes]) -> bool:
    store = client.services.store
    while True:
        try:
            found = await retry_metadata(partial(store.read_ledger, ledger))
            custom = found.metadata.custom_metadata
            if owner_of(custom) is not None or LEDGER_NAMESPACE in custom:
                return False
            marked = replace(found.metadata, custom_metadata={**custom, **mark})
            await store.write_ledger(ledger, marked, found.version)
            return True
        except VersionConflict:
            continue  # Its writer has changed it; look again.
        except NoSuchLedger:
            return False
