"""Verdicts from all members of a ledger: whether the writer of an open one lives, and whether entries are lost.

An open ledger that names a lost bookie is judged from its members and leases. Entries that a check of copies could not
mend are lost, or only out of reach.

Not here: the recovery itself (`client/maintain/recover`), the check of copies (`client/maintain/repair`), what is
copied once the ledger is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from buckram.client.ledger_client import LedgerClient
from buckram.client.read.replicas import LedgerReads, ask
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.healing.status import Reason, Row, Why, add_to_rows, named_rows
from buckram.core.healing.writer_silence import Stillness
from buckram.core.ledgers.answers import Negative, Unknown
from buckram.core.ledgers.metadata import birth_of, fragment_of
from buckram.core.ledgers.recovery import quorum_of
from buckram.core.streams.names import owner_of
from buckram.core.wire.messages import ReadLac, ReadLacReply
from buckram.errors import Code, NoSuchKey
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.shared.metadata import StreamStore
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata


class OpenLedgers:
    """Judge of open ledgers, looking at them again and again.

    A writer that lives, degraded or idle, is never fenced by this.
    """

    def __init__(self, client: LedgerClient, grace_s: float) -> None:
        self._client, self._grace_s = client, grace_s
        self._streams = StreamStore(client.services.store)
        self._still = Stillness()

    async def why_not(self, ledger: LedgerId, metadata: LedgerMetadata) -> str:
        """Return why the ledger must not be recovered now; empty if its writer is taken for dead."""
        owner = owner_of(metadata.custom_metadata)
        if owner is not None and await self._leased(owner[1]):
            return f"stream {owner[0]} has a writer"
        birth = birth_of(metadata)
        ends = await self._ends(ledger, metadata, birth)
        if not ends:
            return "none of its bookies tells how far it is written"
        still_s = self._still.look(ledger, birth, ends, asyncio.get_running_loop().time())
        if still_s < self._grace_s:
            left = self._grace_s - still_s
            return f"it is open and may have a writer; it is recovered when nothing is written for another {left:.0f} s"
        return ""

    def forget(self, ledger: LedgerId) -> None:
        self._still.forget(ledger)

    async def _leased(self, uid: str) -> bool:
        try:
            await self._client.services.store.keys.get(self._streams.layout.lease(uid))
        except NoSuchKey:
            return False
        return True

    async def _ends(self, ledger: LedgerId, metadata: LedgerMetadata, birth: bytes) -> dict[BookieId, bytes]:
        services = self._client.services
        members = [b for b in metadata.last_fragment.ensemble if services.bookies.info(b) is not None]
        replies = await asyncio.gather(*(ask(services.pool, bookie, ReadLac(ledger, birth)) for bookie in members))
        found: dict[BookieId, bytes] = {}
        for bookie, reply in zip(members, replies, strict=True):
            if isinstance(reply, ReadLacReply):
                found[bookie] = b"%r %r" % (reply.lac_body, reply.last_entry_body)
            elif not isinstance(reply, Exception) and reply.code in (Code.NO_ENTRY, Code.NO_LEDGER):
                found[bookie] = b""
        return found


# -- lost entries ---------------------------------------------------------------------------------------------

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
