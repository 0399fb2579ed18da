"""Lists of the entries that a bookie has of a ledger, and the members of a ledger that lack some of theirs.

A recovery does not know which entries the ledger's writer saw confirmed, so it asks the members for what their ledger's
record places on them before it closes the ledger.

Not here: copying what they lack (`client/maintain/repair.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from buckram.client.read.replicas import ask
from buckram.client.shared.services import Services
from buckram.core.healing.needs import members_of
from buckram.core.ledgers.answers import bookie_error
from buckram.core.ledgers.metadata import birth_of
from buckram.core.ledgers.replica_audit import held_rows
from buckram.core.wire.availability import BadAvailability, EntryList
from buckram.core.wire.messages import ListEntries, ListEntriesReply, ReadLac
from buckram.errors import BookieError, BuckramError, Code, HandleClosed
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata


async def entry_list(services: Services, bookie: BookieId, ledger: LedgerId, birth: bytes) -> EntryList | None:
    """Return the bookie's list of the entries that it holds of the ledger; None if it does not know such lists.

    Raises the error of a bookie that does not answer, or cannot list them. Bookies that do not know the request may
    hang up, so one that hangs up twice and answers another request in between is taken for such.
    """
    reply = await ask(services.pool, bookie, ListEntries(ledger, birth=birth))
    if not isinstance(reply, ListEntriesReply):
        other = await ask(services.pool, bookie, ReadLac(ledger, birth))
        if isinstance(other, BuckramError):
            raise other
        reply = await ask(services.pool, bookie, ListEntries(ledger, birth=birth))
    if not isinstance(reply, ListEntriesReply) or reply.code in (Code.BAD_REQUEST, Code.BAD_VERSION):
        return None
    if reply.code is Code.OK:
        try:
            return EntryList.decode(reply.availability)
        except BadAvailability as error:
            raise BookieError(bookie, str(error)) from error
    if reply.code in (Code.NO_LEDGER, Code.NO_ENTRY):
        return EntryList(())
    raise bookie_error(bookie, reply.code)


async def lists_all(
    services: Services, bookie: BookieId, ledger: LedgerId, birth: bytes, ranges: Iterable[tuple[EntryId, EntryId]]
) -> bool | None:
    """Return whether the bookie lists every entry of `ranges` (first, last), ascending; None if it does not know such
    lists.

    A bookie that does not answer, or cannot list them, counts as holding nothing.
    """
    try:
        held = await entry_list(services, bookie, ledger, birth)
    except HandleClosed:
        raise
    except BuckramError:
        return not any(True for _ in ranges)
    return None if held is None else held.covers(ranges)


# -- all members of a ledger ----------------------------------------------------------------------------------


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
