"""Placement looked at from outside: which ledgers break their policy, and why bookies are where they are.

The policy is the one in a ledger's record, else the client's. Moving members is repair's work (`move=True`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from buckram.client.read.open import check_ledger_id, list_ledgers
from buckram.client.shared.services import Services
from buckram.core.ledgers.quorum import Quorum
from buckram.core.ledgers.recovery import quorum_of
from buckram.core.placement.choose import slow_ones
from buckram.core.placement.explain import Reason, explain
from buckram.core.placement.judge import Breach, breaches
from buckram.core.placement.policy import PlacementPolicy, policy_of
from buckram.errors import NoSuchLedger
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata

_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A ledger with fragments that break its policy: (first entry, what is broken) for each."""

    ledger_id: LedgerId
    policy: PlacementPolicy
    open: bool
    fragments: tuple[tuple[EntryId, tuple[Breach, ...]], ...]


@dataclass(frozen=True, slots=True)
class Explained:
    """Members of one ensemble and all other bookies, each with a reason; `short`: where it does not meet the policy."""

    policy: PlacementPolicy
    first_entry: EntryId
    reasons: tuple[Reason, ...]
    short: tuple[Breach, ...]


async def misplaced(services: Services) -> AsyncIterator[Misplaced]:
    """Every ledger that breaks its policy, ascending. Errors of the metadata store raise."""
    await services.bookies.refresh()
    batch: list[LedgerId] = []
    async for ledger_id in list_ledgers(services):
        batch.append(ledger_id)
        if len(batch) == _AT_ONCE:
            for found in await _judged(services, batch):
                yield found
            batch = []
    for found in await _judged(services, batch):
        yield found


async def _judged(services: Services, ids: list[LedgerId]) -> list[Misplaced]:
    found = await asyncio.gather(*(_judge(services, ledger_id) for ledger_id in ids))
    return [one for one in found if one is not None]


async def _judge(services: Services, ledger_id: LedgerId) -> Misplaced | None:
    try:
        metadata = (await services.store.read_ledger(ledger_id)).metadata
    except NoSuchLedger:
        return None  # deleted a moment ago
    return judge(services, ledger_id, metadata)


def judge(services: Services, ledger_id: LedgerId, metadata: LedgerMetadata) -> Misplaced | None:
    """None where every fragment meets the policy."""
    policy = policy_of(metadata.custom_metadata, services.bookies.policy)
    quorum, topology = quorum_of(metadata), services.bookies.topology
    rows = [(f.first_entry, tuple(breaches(f.ensemble, quorum, policy, topology))) for f in metadata.fragments]
    broken = tuple((first, found) for first, found in rows if found)
    return Misplaced(ledger_id, policy, not metadata.closed, broken) if broken else None


async def explain_ledger(services: Services, ledger_id: LedgerId) -> list[Explained]:
    """For each fragment of a ledger. NoSuchLedger."""
    metadata = (await services.store.read_ledger(check_ledger_id(ledger_id))).metadata
    policy = policy_of(metadata.custom_metadata, services.bookies.policy)
    known = await _everybody(services)
    quorum = quorum_of(metadata)
    return [_explained(services, f.first_entry, f.ensemble, quorum, policy, known) for f in metadata.fragments]


async def explain_new(services: Services, quorum: Quorum, policy: PlacementPolicy) -> Explained:
    """For a ledger that would be made now; nothing is made. NotEnoughBookies where it could not be."""
    known = await _everybody(services)
    chosen = await services.bookies.choose_fresh(quorum, policy=policy)
    return _explained(services, 0, chosen.members, quorum, policy, known)


async def _everybody(services: Services) -> list[BookieId]:
    await services.bookies.refresh()
    there = services.bookies.bookies
    return sorted(dict.fromkeys((*there.writable, *there.readonly, *await services.store.known_bookies())))


def _explained(
    services: Services,
    first: EntryId,
    members: tuple[BookieId, ...],
    quorum: Quorum,
    policy: PlacementPolicy,
    known: list[BookieId],
) -> Explained:
    bookies = services.bookies
    candidates = bookies.candidates()
    usable = [c.bookie_id for c in candidates]
    unusable = {b: _why_unusable(services, b) for b in (*known, *members) if b not in usable}
    avoided = {b: "it failed this client a moment ago" for b in known if bookies.quarantined(b)}
    avoided |= {b: "it says that its disk is slow" for b in known if b in bookies.slow} | slow_ones(candidates)
    reasons = explain(members, quorum, policy, bookies.topology, unusable=unusable, avoided=avoided, others=known)
    return Explained(policy, first, tuple(reasons), tuple(breaches(members, quorum, policy, bookies.topology)))


def _why_unusable(services: Services, bookie: BookieId) -> str:
    bookies = services.bookies
    if bookie in bookies.convicted:
        return "convicted of lying: see `buckram cluster check`"
    if bookie in bookies.bookies.readonly and bookie not in bookies.bookies.writable:
        return "read-only"
    info = bookies.info(bookie)
    if info is None:
        return "not registered"
    return "registered without an address" if info.address is None else "it does not say who it is, which is required"


__all__ = ["Explained", "Misplaced", "explain_ledger", "explain_new", "judge", "misplaced"]
