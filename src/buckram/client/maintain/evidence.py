"""Collects what bookies did wrong during a recovery or a repair, and writes it down at the end (F21).

Never in the way: what was seen is kept until the work is done, and a metadata store that is away costs one second.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from buckram.client.shared.services import Services
from buckram.core.cluster.conviction import UNFIT, Deed, Evidence, shown_for_another
from buckram.core.entries.entry import Digest
from buckram.errors import MetadataError
from buckram.metadata.records.bookie_health import accuse
from buckram.types import BookieId, EntryId, LedgerId

log = logging.getLogger("buckram.client")
_WITHIN_S = 1.0


class Accuser:
    """The evidence of bookies' misdeeds in one ledger: the first of each kind per bookie. `sealed`: the ledger's record
    has a MAC (core/ledgers/metadata.names_mac), and then bytes that do not fit its digest make a bookie a suspect."""

    def __init__(self, services: Services, ledger_id: LedgerId, digest: Digest, *, sealed: bool) -> None:
        self._services, self._ledger_id, self._digest = services, ledger_id, digest
        self._sealed = sealed
        self._evidence: dict[tuple[BookieId, Deed], Evidence] = {}

    def looked_at(self, bookie: BookieId, entry: EntryId | None, stored: bytes) -> None:
        """Record bytes that did not pass as the entry that was asked for. `entry`: None if the request was not about
        one."""
        what = shown_for_another(self._digest, self._ledger_id, entry, stored)
        if what:
            self.saw(Deed.MIXED, bookie, -1 if entry is None else entry, what)
        elif self._sealed:
            self.saw(Deed.DAMAGED, bookie, -1 if entry is None else entry, UNFIT)

    def saw(self, deed: Deed, bookie: BookieId, entry: EntryId, detail: str) -> None:
        known = self._services.bookies.incarnation(bookie) or ""
        now = self._services.runtime.clock.wall_us()
        self._evidence.setdefault((bookie, deed), Evidence(deed, bookie, known, self._ledger_id, entry, detail, now))

    async def accuse(self) -> None:
        if not self._evidence:
            return
        for one in self._evidence.values():
            log.warning("bookie %s is %s: %s", one.bookie, "convicted" if one.convicts else "suspect", one)
        with suppress(MetadataError, TimeoutError):
            async with asyncio.timeout(_WITHIN_S):
                await accuse(self._services.store, list(self._evidence.values()))
