"""The members of a ledger that do not list all that its record places on them: asked before a recovery closes it.

A recovery does not know which entries the ledger's writer saw confirmed. Not here: copying what lacks (`repair.py`).
"""

from __future__ import annotations

import asyncio

from buckram.client.maintain.entry_lists import entry_list
from buckram.client.shared.services import Services
from buckram.core.healing.needs import members_of
from buckram.core.ledgers.holdings import held_rows
from buckram.core.ledgers.metadata import birth_of
from buckram.errors import BuckramError, HandleClosed
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata


async def members_behind(
    services: Services, ledger_id: LedgerId, metadata: LedgerMetadata, end: EntryId, within_s: float
) -> list[BookieId]:
    """Return members that are not known to hold everything up to `end`, those included that do not answer in time."""
    birth = birth_of(metadata)

    async def holds(bookie: BookieId) -> bool:
        if not any(True for _ in held_rows(metadata, bookie, end)):
            return True
        if services.bookies.info(bookie) is None:
            return False
        try:
            async with asyncio.timeout(within_s):
                held = await entry_list(services, bookie, ledger_id, birth)
        except HandleClosed:
            raise
        except (BuckramError, TimeoutError):
            return False
        return held is not None and held.covers(held_rows(metadata, bookie, end))

    members = members_of(metadata)
    held = await asyncio.gather(*(holds(bookie) for bookie in members))
    return [bookie for bookie, whole in zip(members, held, strict=True) if not whole]


__all__ = ["members_behind"]
