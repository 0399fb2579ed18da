"""The gate before a bookie that is not registered is taken out: one for commands, the HTTP API and gateways.

Not here: the rule itself (`core/health/findings.py:why_kept`), which the advice of the table goes by as well; taking it
out (`healing/operations/decommission.py`), which refuses a bookie that is registered.
"""

from __future__ import annotations

from buckram.client.ledger_client import LedgerClient
from buckram.core.health.findings import why_kept
from buckram.healing.operations.dependency_check import OperationRefused
from buckram.health.gathering import Gatherer
from buckram.types import BookieId


async def check_removable(client: LedgerClient, bookie: BookieId) -> None:
    """Raise Refused, with the reason, for a bookie that is not registered and still answers, and for any unregistered
    bookie while the metadata are not believed or not accepted.

    One that is registered passes. Raises MetadataError.
    """
    gatherer = Gatherer.of(client)
    try:
        facts = await gatherer.about(bookie)
    finally:
        await gatherer.close()
    why = why_kept(facts, bookie) if facts.bookies[0].state == "down" else ""
    if why:
        raise OperationRefused(why)
