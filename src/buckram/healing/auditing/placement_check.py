"""The placement check: how many ledgers break their placement, by their records alone.

Nothing is moved: `buckram placement check` names them, and moves members with `--fix`.
"""

from __future__ import annotations

import logging

from buckram.client.maintain.placement import judge
from buckram.healing.auditing.ledger_walk import Checked, LedgerWalk
from buckram.types import LedgerId

log = logging.getLogger("buckram.healing")
_NAMED = 20


class PlacementCheck(LedgerWalk):
    """Runs over all ledgers; the first that break their placement are named in the log."""

    title = "placement check"

    async def look(self, ledger: LedgerId, found: Checked) -> None:
        metadata = (await self._services.store.read_ledger(ledger)).metadata
        broken = judge(self._services, ledger, metadata)
        if broken is None:
            return
        found.misplaced += 1
        if found.misplaced <= _NAMED:
            why = "; ".join(str(breach) for _, breaches in broken.fragments for breach in breaches)
            log.info("ledger %d breaks its placement `%s`: %.300s", ledger, broken.policy, why)


__all__ = ["PlacementCheck"]
