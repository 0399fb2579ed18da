"""Periodic checks of the elected auditor: begun when their interval is over, their date kept in the metadata store.

The date is written only after a complete run, so a new auditor begins anew what another one did not end.
"""

from __future__ import annotations

import asyncio
import logging

from buckram.client.client import Client
from buckram.config import HealingConfig
from buckram.core.healing.schedule import due_in_s
from buckram.errors import ClusterNotInitialised, MetadataError, StoreReplaced
from buckram.healing.auditor import Auditor
from buckram.healing.board import Board
from buckram.healing.checks.copies import Checked, CopiesCheck
from buckram.metadata.underreplication import Underreplication
from buckram.net.pace import Pace

log = logging.getLogger("buckram.healing")
COPIES = "checkallledgers"
"""The name of the date in the tree: Apache's check of all ledgers marks what lacks, as this one does."""
_LOOK_S = 60.0


class PeriodicChecks:
    """The checks of one candidate. `run` never ends by itself; cancel it."""

    def __init__(self, client: Client, auditor: Auditor, config: HealingConfig) -> None:
        self._client, self._auditor, self._config = client, auditor, config
        store = client.services.store
        self._tree, self._board = Underreplication(store.keys, store.root, auditor.name), Board(store)

    async def run(self) -> None:
        """Look whether a check is due, again and again. Ends with a bug or a replaced store only."""
        interval_s = self._config.copies_check_interval_s
        while True:
            wait_s = _LOOK_S
            if interval_s and self._auditor.elected:
                try:
                    wait_s = min(_LOOK_S, await self._step(interval_s))
                except (StoreReplaced, ClusterNotInitialised):
                    raise
                except MetadataError as error:
                    log.warning("auditor %s: the copies check is not complete: %s", self._auditor.name, error)
            await asyncio.sleep(min(wait_s, interval_s or _LOOK_S))

    async def _step(self, interval_s: float) -> float:
        """Run the check if it is due; gives the seconds until it has to be looked at again."""
        clock = self._client.services.runtime.clock
        due_s = due_in_s(await self._tree.last_run_ms(COPIES), clock.wall_us() // 1000, interval_s)
        if due_s > 0 or not await self._tree.enabled():
            return due_s or _LOOK_S
        found = await self.check()
        log.info(
            "auditor %s: copies check: %d ledgers, %d marked, %d unknown, %d unreadable",
            *(self._auditor.name, found.ledgers, found.marked, found.unknown, found.unreadable),
        )
        if found.complete:
            await self._tree.set_last_run(COPIES, clock.wall_us() // 1000)
        return interval_s

    async def check(self) -> Checked:
        """One run now, for as long as this auditor is elected."""
        requests, reads = Pace(self._config.check_requests_per_s), Pace(self._config.copy_bytes_per_s)
        found = await CopiesCheck(self._client, self._tree, requests, reads).run(lambda: self._auditor.elected)
        if found.marked:
            await self._board.marked()
        return found
