"""Deleting a ledger: recover first if it is not closed, so that no writer gets an add acknowledged after it (M10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from buckram.client.maintain.recover import recover_ledger
from buckram.client.read.open import check_ledger_id, check_password
from buckram.client.shared.services import Services
from buckram.core.streams.names import owner_of
from buckram.errors import LedgerOfStream, MetadataUnavailable, NoSuchLedger, RecoveryFailed, VersionConflict
from buckram.types import DigestType, LedgerId, LedgerMetadata

Judge = Callable[[LedgerId, LedgerMetadata], Awaitable[None]]
"""Raises why the ledger with this record is not to be deleted."""
_TRIES = 10
_RETRY_S = 0.2


async def delete_ledger(
    services: Services,
    ledger_id: LedgerId,
    *,
    password: bytes = b"",
    digest: DigestType | None = None,
    force: bool = False,
    judge: Judge | None = None,
) -> bool:
    """Delete the ledger. Its bookies drop the data when they next compare their store with the listing.

    Returns whether it was closed or recovered before, so that nobody writes it any more. A live writer is fenced.
    `force` deletes also a ledger that cannot be recovered because its bookies are gone; then a writer that still
    reaches them is stopped only by their collection. Errors: NoSuchLedger, Unauthorized, RecoveryFailed,
    MetadataUnavailable (it may or may not be deleted); LedgerOfStream for a ledger that was made for a stream, or what
    `judge` raises in place of that.
    """
    services.guard()
    store = services.store
    versioned = await store.read_ledger(check_ledger_id(ledger_id))
    check_password(ledger_id, versioned.metadata, password)
    await (judge or _check_of_no_stream)(ledger_id, versioned.metadata)
    attempted, recovered = False, True
    for left in reversed(range(_TRIES)):
        try:
            if attempted:
                before, versioned = versioned, await store.read_ledger(ledger_id)
                if versioned.version < before.version:
                    return recovered  # versions only grow: ours is gone, and another ledger has its id
            if not versioned.metadata.closed:
                try:
                    await (await recover_ledger(services, ledger_id, password=password, digest=digest)).close()
                    recovered = True
                except RecoveryFailed:
                    if not force:
                        raise
                    recovered = False
                versioned = await store.read_ledger(ledger_id)
            attempted = True
            await store.delete_ledger(ledger_id, versioned.version)
        except NoSuchLedger:
            # Gone after we asked for it: by our lost request or by somebody else, the wish is fulfilled.
            if not attempted:
                raise
        except (VersionConflict, MetadataUnavailable):
            # A repair changed it, or a reply was lost: look again before deciding.
            if not left:
                raise
            attempted = True
            await asyncio.sleep(_RETRY_S)
            continue
        return recovered
    raise AssertionError("the last try returns or raises")


async def _check_of_no_stream(ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
    owner = owner_of(metadata.custom_metadata)
    if owner is not None:
        raise LedgerOfStream(ledger_id, owner[0])
