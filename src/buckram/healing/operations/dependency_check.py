"""The proof that no ledger depends on a bookie, and whether the other bookies could take over or get by.

Only metadata is read, and every record of it: one that cannot be read ends the walk, because it could name any bookie.
Not here: the copying (`healing/repair/replicator`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from buckram.core.healing.needs import entries_held, members_of
from buckram.errors import MalformedRecord, NoSuchLedger
from buckram.seams import MetadataStore
from buckram.types import BookieId, LedgerId, LedgerMetadata

_PAGE = 1000
_AT_ONCE = 64


class OperationRefused(Exception):
    """A request that is not carried out; the message says why, and what would let it go on."""


async def ledger_records(
    store: MetadataStore, ledgers: Collection[LedgerId] | None = None
) -> AsyncIterator[tuple[LedgerId, LedgerMetadata]]:
    """Yield the record of every ledger, or of those given, ascending, without deleted ones.

    Raises MalformedRecord.
    """
    if ledgers is not None:
        async for one in _read(store, list(ledgers)):
            yield one
        return
    after = -1
    while page := await store.read_ledgers(after=after, limit=_PAGE):
        for ledger, found in page:
            if isinstance(found, MalformedRecord):
                raise found
            yield ledger, found.metadata
        after = page[-1][0]


async def _read(store: MetadataStore, asked: list[LedgerId]) -> AsyncIterator[tuple[LedgerId, LedgerMetadata]]:
    for start in range(0, len(asked), _AT_ONCE):
        part = asked[start : start + _AT_ONCE]
        for ledger, found in zip(part, await asyncio.gather(*(_record(store, one) for one in part)), strict=True):
            if found is not None:
                yield ledger, found


async def _record(store: MetadataStore, ledger: LedgerId) -> LedgerMetadata | None:
    try:
        return (await store.read_ledger(ledger)).metadata
    except NoSuchLedger:
        return None


async def ledgers_naming(
    store: MetadataStore, bookie: BookieId, ledgers: Collection[LedgerId] | None = None
) -> dict[LedgerId, int]:
    """Return every ledger (or every one of those given) that names the bookie, with the entries that it
    places there.
    """
    return {
        ledger: entries_held(metadata, bookie)
        async for ledger, metadata in ledger_records(store, ledgers)
        if bookie in members_of(metadata)
    }


def shown(ledgers: Collection[LedgerId], most: int = 10) -> str:
    """Return the first of these ledgers as text for people."""
    return ", ".join(map(str, list(ledgers)[:most])) + (", ..." if len(ledgers) > most else "")
