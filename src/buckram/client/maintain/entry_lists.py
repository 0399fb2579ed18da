"""Asking a bookie for its list of the entries of a ledger, and whether all of some ranges are on it."""

from __future__ import annotations

from collections.abc import Iterable

from buckram.client.read.replicas import ask
from buckram.client.shared.services import Services
from buckram.core.wire.availability import BadAvailability, EntryList
from buckram.core.wire.messages import ListEntries, ListEntriesReply, ReadLac
from buckram.errors import BuckramError, Code
from buckram.types import BookieId, EntryId, LedgerId


async def lists_all(
    services: Services, bookie: BookieId, ledger: LedgerId, birth: bytes, ranges: Iterable[tuple[EntryId, EntryId]]
) -> bool | None:
    """Whether the bookie lists every entry of `ranges` (first, last), ascending; None: it knows no such lists.

    False, too, where it does not answer: what nobody has seen does not count. Bookies that do not know the request may
    hang up, so one that hangs up twice and answers another request in between is taken for such.
    """
    reply = await ask(services.pool, bookie, ListEntries(ledger, birth=birth))
    if not isinstance(reply, ListEntriesReply):
        if isinstance(await ask(services.pool, bookie, ReadLac(ledger, birth)), BuckramError):
            return False
        reply = await ask(services.pool, bookie, ListEntries(ledger, birth=birth))
    if not isinstance(reply, ListEntriesReply):
        return None
    if reply.code in (Code.BAD_REQUEST, Code.BAD_VERSION):
        return None
    try:
        held = EntryList.decode(reply.availability) if reply.code is Code.OK else EntryList(())
    except BadAvailability:
        return False
    return held.covers(ranges)
