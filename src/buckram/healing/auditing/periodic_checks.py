"""Periodic checks of all ledgers by the elected auditor, and how long marks have been open.

Dates are written only after a complete run, so a new auditor begins anew what another one did not end. On ZooKeeper
those of the copies check and of the placement check are where Apache's auditor keeps the dates of its own.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict

from buckram.client.ledger_client import LedgerClient
from buckram.config import HealingConfig
from buckram.core.healing.periodic_checks import due_in_s
from buckram.errors import ClusterNotInitialised, MalformedRecord, MetadataError, StoreReplaced
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.auditing.ledger_checks import CopiesCheck, DigestCheck, PlacementCheck
from buckram.healing.auditing.ledger_walk import Checked
from buckram.healing.overview import COPIES, PLACEMENT
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.underreplication import Underreplication
from buckram.runtime.net.pace import Pace

log = logging.getLogger("buckram.healing")
_LOOK_S = 60.0
_AGES_S = 300.0
_MOST_MARKS = 10_000
"""Maximum number of marks whose age is looked at."""
DIGESTS = "digests"
"""Name of the digest check. Apache has no such check: its date is with its result, in keys of our own."""


class PeriodicChecks:
    """Periodic checks of one candidate. `run` never ends by itself; cancel it."""

    def __init__(self, client: LedgerClient, auditor: Auditor, config: HealingConfig) -> None:
        self._client, self._auditor, self._config = client, auditor, config
        store = client.services.store
        self._tree, self._board = Underreplication(store.keys, store.root, auditor.name), HealingStatusStore(store)
        self._intervals_s = {
            PLACEMENT: config.placement_check_interval_s,
            COPIES: config.copies_check_interval_s,
            DIGESTS: config.digest_check_interval_s,
        }
        self._ages_at = float("-inf")
        stats = client.services.runtime.stats
        self._oldest = stats.gauge("buckram_healing_oldest_mark_seconds", "since when the oldest mark has been open")

    async def run(self) -> None:
        """Look whether a check is due, again and again. Ends with a bug or a replaced store only."""
        shortest_s = min((interval_s for interval_s in self._intervals_s.values() if interval_s), default=_LOOK_S)
        while True:
            await self._auditor.until_elected()
            wait_s = _LOOK_S
            for check, interval_s in self._intervals_s.items():
                if interval_s and self._auditor.elected:
                    try:
                        wait_s = min(wait_s, await self._step(interval_s, check))
                    except (StoreReplaced, ClusterNotInitialised):
                        raise
                    except MetadataError as error:
                        log.warning("auditor %s: check %s is not complete: %s", self._auditor.name, check, error)
            await self._look_at_ages()
            await asyncio.sleep(min(wait_s, shortest_s))

    async def _step(self, interval_s: float, check: str = COPIES) -> float:
        """Run the check if it is due; return the seconds until it has to be looked at again."""
        due_s = due_in_s(await self._last_ms(check), self._now_ms(), interval_s)
        if due_s > 0 or not await self._tree.enabled():
            return due_s or _LOOK_S
        found = await self.check(check)
        text = ", ".join(f"{count} {what}" for what, count in asdict(found).items() if what != "complete" and count)
        log.info("auditor %s: check %s: %s", self._auditor.name, check, text or "no ledgers")
        if found.complete:
            if check != DIGESTS:
                await self._tree.set_last_run(check, self._now_ms())
            await self._board.say_checked(check, {**asdict(found), "at_ms": self._now_ms()})
        return interval_s

    async def check(self, check: str = COPIES) -> Checked:
        """Run the check once now, for as long as this auditor is elected."""
        client, config, tree = self._client, self._config, self._tree
        requests, reads = Pace(config.check_requests_per_s), Pace(config.copy_bytes_per_s)
        if check == PLACEMENT:
            found = await PlacementCheck(client).run(self._goes_on)
        elif check == DIGESTS:
            async with DigestCheck(client, tree, config.digest_check_fraction, requests, reads) as digests:
                found = await digests.run(self._goes_on)
        else:
            found = await CopiesCheck(client, tree, requests, reads).run(self._goes_on)
        if found.marked:
            await self._board.marked()
        return found

    def _goes_on(self) -> bool:
        return self._auditor.elected

    async def _last_ms(self, check: str) -> int:
        if check != DIGESTS:
            return await self._tree.last_run_ms(check)
        at_ms = (await self._board.checked()).get(DIGESTS, {}).get("at_ms")
        return at_ms if isinstance(at_ms, int) else -1

    # -- the age of marks ---------------------------------------------------------------------------------

    async def _look_at_ages(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._auditor.elected or now - self._ages_at < _AGES_S:
            return
        self._ages_at = now
        try:
            await self.look_at_ages()
        except (StoreReplaced, ClusterNotInitialised):
            raise
        except MetadataError as error:
            log.warning("auditor %s: the age of marks is not known: %s", self._auditor.name, error)

    async def look_at_ages(self) -> None:
        """Set the metric of the oldest mark, and log the ledger that has been marked for longest if that is
        too long.
        """
        oldest_ms, oldest, late, seen = 0, -1, 0, 0
        async for ledger in self._tree.marked():
            try:
                mark = await self._tree.read_mark(ledger)
            except MalformedRecord:
                continue  # status names it; it never hides the others
            age_ms = self._now_ms() - mark.ctime_ms if mark is not None and mark.ctime_ms >= 0 else 0
            late += age_ms > self._config.old_mark_s * 1000
            if age_ms > oldest_ms:
                oldest_ms, oldest = age_ms, ledger
            seen += 1
            if seen >= _MOST_MARKS:
                break
        self._oldest.set(oldest_ms / 1000)
        if late:
            text = "auditor %s: %d ledgers have been marked for more than %g s; ledger %d for %.0f s"
            log.warning(text, self._auditor.name, late, self._config.old_mark_s, oldest, oldest_ms / 1000)

    def _now_ms(self) -> int:
        return self._client.services.runtime.clock.wall_us() // 1000


__all__ = ["COPIES", "DIGESTS", "PLACEMENT", "PeriodicChecks"]
