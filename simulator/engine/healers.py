"""Auditors and replicators of a life, each in a process of its own that is started again whenever it died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from buckram.cluster import Client
from buckram.config import HealingConfig
from buckram.errors import BuckramError
from buckram.healing.auditing.absence_checks import FirstChecks
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.auditing.periodic_checks import PeriodicChecks
from buckram.healing.repair.replicator import Replicator
from simulator.engine.world import Died, World

AUDITOR = "a"
REPLICATOR = "h"
"""First letters of the hosts of auditors and replicators."""


class Healer:
    """A host with an auditor or a replicator.

    `lasts`: returns whether it is to be started again; `began` and `ended` are called with the host of each process.
    `checks`: an auditor also carries out the periodic checks of all ledgers.
    """

    def __init__(
        self,
        world: World,
        host: str,
        config: HealingConfig,
        lasts: Callable[[], bool],
        began: Callable[[str], None],
        ended: Callable[[str], None],
        *,
        checks: bool = False,
    ) -> None:
        self.world, self.host, self._config, self._checks = world, host, config, checks
        self._lasts, self._began, self._ended = lasts, began, ended

    async def run(self) -> None:
        while self._lasts():
            try:
                client = await self.world.client(self.host)
                self._began(self.host)
                await self.world.join(self.world.processes[self.host], self._work(client), "healing")
            except Died:
                pass
            except BuckramError as error:
                self.world.trace.note(self.host, f"ends: {error!r}")
            finally:
                self._ended(self.host)
            await asyncio.sleep(0.5)

    async def _work(self, client: Client) -> None:
        if self.host.startswith(REPLICATOR):
            await Replicator(client, self.host, self._config).run()
        auditor = Auditor(client, self.host, self._config)
        parts = [auditor.run(), FirstChecks(client, auditor, self._config).run()]
        if self._checks:
            parts.append(PeriodicChecks(client, auditor, self._config).run())
        await asyncio.gather(*parts)
