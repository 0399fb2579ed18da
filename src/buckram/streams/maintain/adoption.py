"""Adoption: an administrator marks ledgers in a stream's list that have no owner mark as the stream's own.

All releases write that mark when they create a ledger. A ledger without it was made by other software and put into the
segment list by hand, and servers leave it alone (`streams/shared/ownership.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.core.security.namespace_rules import LEDGER_NAMESPACE
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.metadata.head import HISTORY
from buckram.core.streams.names import StreamName, owner_mark, owner_of
from buckram.errors import NoSuchLedger, VersionConflict
from buckram.streams.shared.ledgers import SEGMENT
from buckram.streams.shared.metadata import StreamStore, retry_metadata
from buckram.types import LedgerId


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


__all__ = ["adopt_ledgers"]
