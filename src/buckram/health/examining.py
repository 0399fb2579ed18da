"""What only a long look finds: keys and ledgers that nobody needs any more, with what removes them.

Not here: what is wrong with a single record (`metadata/checkup.py`), leftovers and orphans (`healing`).
"""

from __future__ import annotations

from buckram.client.ledger_client import LedgerClient
from buckram.healing.doctor import Fixable, orphans
from buckram.healing.leftovers import leftovers


async def fixable_of(client: LedgerClient) -> list[Fixable]:
    """Keys and ledgers that nobody needs any more. The client has to be open for the fixes. BuckramError."""
    return [*await leftovers(client.services.store), *await orphans(client)]


__all__ = ["fixable_of"]
