"""Placement looked at from outside: which ledgers break their policy, and why bookies are where they are.

The policy is the one in a ledger's record, else the client's. Moving members is repair's work (`move=True`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from buckram.client.read.open import check_ledger_id
from buckram.client.shared.services import Services
from buckram.core.ledgers.quorum import Quorum
from buckram.core.ledgers.recovery import quorum_of
from buckram.core.placement.choose import slow_ones
from buckram.core.placement.explain import PlacementReason, explain
from buckram.core.placement.judge import Breach, breaches
from buckram.core.placement.policy import PlacementPolicy, policy_of
from buckram.errors import MalformedRecord
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata


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
    reasons: tuple[PlacementReason, ...]
    short: tuple[Breach, ...]


Shapes = dict[tuple[Quorum, str], PlacementPolicy]
"""Quorums and policies of ledgers, by themselves and the policy as it is written."""


async def judged(
    services: Services, shapes: Shapes | None = None
) -> AsyncIterator[tuple[LedgerId, Misplaced | MalformedRecord | None]]:
    """Yield every ledger, ascending, with its breaches: None if it meets its policy, the error if its record cannot be
    read.

    `shapes` takes up all that ledgers have. Errors of the metadata store raise.
    """
    await services.bookies.refresh()
    after = -1
    while page := await services.store.read_ledgers(after=after):
        for ledger_id, found in page:
            if isinstance(found, MalformedRecord):
                yield ledger_id, found
            else:
                if shapes is not None:
                    policy = policy_of(found.metadata.custom_metadata, services.bookies.policy)
                    shapes[quorum_of(found.metadata), str(policy)] = policy
                yield ledger_id, judge(services, ledger_id, found.metadata)
        after = page[-1][0]


async def misplaced(services: Services) -> AsyncIterator[Misplaced]:
    """Yield every ledger that breaks its policy, ascending. Raises MalformedRecord if the record of one cannot be
    read."""
    async for _, found in judged(services):
        if isinstance(found, MalformedRecord):
            raise found
        if found is not None:
            yield found


def judge(services: Services, ledger_id: LedgerId, metadata: LedgerMetadata) -> Misplaced | None:
    """Return what breaks the policy; None where every fragment meets it, or is as good as a new ledger would be."""
    policy = policy_of(metadata.custom_metadata, services.bookies.policy)
    quorum, topology = quorum_of(metadata), services.bookies.topology
    limits = services.bookies.attainable(quorum, policy)
    rows = [(f.first_entry, tuple(breaches(f.ensemble, quorum, policy, topology, limits))) for f in metadata.fragments]
    broken = tuple((first, found) for first, found in rows if found)
    return Misplaced(ledger_id, policy, not metadata.closed, broken) if broken else None


async def explain_ledger(services: Services, ledger_id: LedgerId) -> list[Explained]:
    """Explain the placement of each fragment of a ledger. Raises NoSuchLedger."""
    metadata = (await services.store.read_ledger(check_ledger_id(ledger_id))).metadata
    policy = policy_of(metadata.custom_metadata, services.bookies.policy)
    known = await _everybody(services)
    quorum = quorum_of(metadata)
    return [_explained(services, f.first_entry, f.ensemble, quorum, policy, known) for f in metadata.fragments]


async def explain_new(services: Services, quorum: Quorum, policy: PlacementPolicy) -> Explained:
    """Explain the placement of a ledger that would be made now; nothing is made. Raises NotEnoughBookies if it could
    not be."""
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
    avoided |= {b: "it reports that its disk is slow" for b in known if b in bookies.slow} | slow_ones(candidates)
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
