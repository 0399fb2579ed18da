"""Findings of a long look only: keys and ledgers that are no longer needed, with what removes them.

Not here: what is wrong with a single record (`metadata/maintain/checkup.py`), leftovers and orphans (`healing`).
"""

from __future__ import annotations

from buckram.client.ledger_client import LedgerClient
from buckram.healing.cleanup import Fixable, orphans
from buckram.healing.leftovers import leftovers


async def fixable_of(client: LedgerClient) -> list[Fixable]:
    """Return the keys and ledgers that are no longer needed. The client has to be open for the fixes.

    Raises BuckramError.
    """
    return [*await leftovers(client.services.store), *await orphans(client)]


__all__ = ["fixable_of"]
