"""The filling of gaps: what a writer's members that were away or late lack is copied to them as repair copies, without
a change of metadata.
"""

from __future__ import annotations

from collections.abc import Collection

from buckram.client.maintain.repair import fill_in
from buckram.client.shared.lagging_replicas import BehindNotes, CopyMissing, LaggingMembers
from buckram.client.shared.ledger_metadata import MetadataCell
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.ledgers.append import AppendWindow
from buckram.runtime.process.tasks import TaskScope
from buckram.types import BookieId, LedgerId


def lagging_members(
    services: Services,
    window: AppendWindow,
    cell: MetadataCell,
    digest: Digest,
    key: bytes,
    scope: TaskScope,
    notes: BehindNotes,
) -> LaggingMembers:
    """Return the keeper of an open ledger's lagging members: when a member is written to again, what was confirmed is
    copied to it from the others."""

    async def copy_confirmed(bookie: BookieId) -> bool:
        noted = notes.noted([bookie])
        done = await fill_in(
            services, window.ledger_id, cell.current, digest, key, [bookie], confirmed=window.lac, listed=True
        )
        if done:
            await notes.clear(noted)
        return done

    away = window.absent.values()
    return LaggingMembers(away, copy_confirmed, scope, note=notes.note, note_after_s=services.config.close_copies_s)


def copy_missing_of(
    services: Services, ledger_id: LedgerId, digest: Digest, key: bytes, notes: BehindNotes
) -> CopyMissing:
    """Fill in a closed ledger. Raises NoSuchLedger when it was deleted meanwhile."""

    async def copy_missing(members: Collection[BookieId]) -> bool:
        noted, current = notes.noted(members), await services.store.read_ledger(ledger_id)
        if not current.metadata.closed:
            return False  # a record of before: it does not say how far the ledger goes
        done = await fill_in(services, ledger_id, current, digest, key, members, listed=True)
        if done:
            await notes.clear(noted)
        return done

    return copy_missing
