"""How a writer's members that were away get what they lack: repair's copying, without a change of metadata."""

from __future__ import annotations

from collections.abc import Collection

from buckram.client.maintain.repair import fill_in
from buckram.client.shared.lagging import CopyMissing, LaggingMembers
from buckram.client.shared.metadata_cell import MetadataCell
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.ledgers.append import AppendWindow
from buckram.net.tasks import TaskScope
from buckram.types import BookieId, LedgerId


def lagging_members(
    services: Services, window: AppendWindow, cell: MetadataCell, digest: Digest, key: bytes, scope: TaskScope
) -> LaggingMembers:
    """Fill in an open ledger: what is confirmed when a member is written to again is copied from the others."""

    async def copy_confirmed(bookie: BookieId) -> bool:
        return await fill_in(services, window.ledger_id, cell.current, digest, key, [bookie], confirmed=window.lac)

    return LaggingMembers(window.absent.values(), copy_confirmed, scope)


def copy_missing_of(services: Services, ledger_id: LedgerId, digest: Digest, key: bytes) -> CopyMissing:
    """Fill in a closed ledger. Raises NoSuchLedger when it was deleted meanwhile."""

    async def copy_missing(members: Collection[BookieId]) -> bool:
        current = await services.store.read_ledger(ledger_id)
        return await fill_in(services, ledger_id, current, digest, key, members)

    return copy_missing
