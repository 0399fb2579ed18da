"""Open ledgers that name a lost bookie: whether their writer lives, judged from their members and leases.

Not here: the recovery itself (`client/maintain/recover`), and what is copied once the ledger is closed.
"""

from __future__ import annotations

import asyncio

from buckram.client.ledger_client import LedgerClient
from buckram.client.read.replicas import ask
from buckram.core.healing.writer_silence import Stillness
from buckram.core.ledgers.metadata import birth_of
from buckram.core.streams.names import owner_of
from buckram.core.wire.messages import ReadLac, ReadLacReply
from buckram.errors import Code, NoSuchKey
from buckram.streams.shared.metadata import StreamStore
from buckram.types import BookieId, LedgerId, LedgerMetadata


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
            return "none of its bookies says how far it is written"
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
