"""The verdict on entries that a check of copies could not mend: lost, or only out of reach. Every member is asked.

Not here: the check itself (`client/maintain/repair`).
"""

from __future__ import annotations

from collections.abc import Collection

from buckram.client.read.replicas import LedgerReads
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.healing.status import Reason, Row, Why, add_to_rows, named_rows
from buckram.core.ledgers.answers import Negative, Unknown
from buckram.core.ledgers.metadata import fragment_of
from buckram.core.ledgers.recovery import quorum_of
from buckram.runtime.process.tasks import TaskScope
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata

_MOST = 10_000
"""Maximum number of entries that are looked at; the rest counts as out of reach until these are settled."""


async def reasons_for(
    services: Services, ledger: LedgerId, metadata: LedgerMetadata, digest: Digest, entries: Collection[EntryId]
) -> list[Reason]:
    """Return the reasons for these entries: lost if every member is registered, answers, and has no good copy; else out
    of reach.
    """
    lost, unread = list[Row](), list[Row]()
    async with TaskScope(f"lost entries {ledger}") as scope:
        reads = LedgerReads(services, ledger, digest, scope)
        for number, entry in enumerate(sorted(set(entries))):
            nowhere = number < _MOST and await _is_nowhere(services, reads, _members(metadata, entry), entry)
            add_to_rows(lost if nowhere else unread, entry)
    found: list[Reason] = []
    if lost:
        found.append(Reason(Why.NO_GOOD_COPY, f"entries {named_rows(lost)} have no good copy", tuple(lost)))
    if unread:
        text = f"no bookie that answers has a good copy of entries {named_rows(unread)}"
        found.append(Reason(Why.COPY_AWAY, text, tuple(unread)))
    return found


def _members(metadata: LedgerMetadata, entry: EntryId) -> list[BookieId]:
    ensemble = fragment_of(metadata, entry).ensemble
    return [ensemble[position] for position in quorum_of(metadata).write_set(entry)]


async def _is_nowhere(services: Services, reads: LedgerReads, members: list[BookieId], entry: EntryId) -> bool:
    for bookie in members:
        if services.bookies.info(bookie) is None:
            return False  # it may come back with its copy
        answer = await reads.stored(bookie, entry)
        denied = isinstance(answer, Negative)
        bad = isinstance(answer, Unknown) and answer.damaged  # an I/O error proves nothing
        if not denied and not bad:
            return False
    return True
