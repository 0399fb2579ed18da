"""The gate before a bookie that is not registered is taken out: one for commands, the HTTP API and gateways.

Not here: the rule itself (`core/health/findings.py:why_kept`), which the advice of the table goes by as well; having
its copies made elsewhere (`healing/operations/decommission.py`), which refuses a bookie that is registered.
"""

from __future__ import annotations

from buckram.client.ledger_client import LedgerClient
from buckram.core.health.findings import why_kept
from buckram.errors import NoSuchBookie, NoSuchKey
from buckram.healing.operations.decommission import forget
from buckram.healing.operations.dependency_check import OperationRefused
from buckram.healing.operations.operator_calls import is_half_forgotten, refuse_named, refuse_registered
from buckram.health.gathering import Gatherer
from buckram.types import BookieId

_KEPT = "is not forgotten"


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


async def forget_bookie(client: LedgerClient, bookie: BookieId) -> None:
    """Remove the cookie of a bookie that is gone for good, and complete a removal that was interrupted.

    Raises NoSuchBookie; Refused for one that is registered or answers, and while a ledger names it.
    """
    store = client.services.store
    await store.sync()
    await refuse_registered(store, bookie, _KEPT)
    try:
        await store.read_cookie(bookie)
    except NoSuchKey:
        if not await is_half_forgotten(store, bookie):
            raise NoSuchBookie(bookie) from None
    await check_removable(client, bookie)
    await refuse_named(store, bookie, _KEPT)
    # It may have come back while the ledgers were read.
    await refuse_registered(store, bookie, _KEPT)
    await forget(store, bookie)
