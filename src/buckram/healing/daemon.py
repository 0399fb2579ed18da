"""The healing services that `buckram up` and `buckram autorecovery run` start: an auditor, its checks and a
replicator.
"""

from __future__ import annotations

import asyncio

from buckram.client.ledger_client import LedgerClient
from buckram.config import HealingConfig
from buckram.healing.auditing.absence_checks import FirstChecks
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.auditing.periodic_checks import PeriodicChecks
from buckram.healing.repair.replicator import Replicator


async def heal(client: LedgerClient, name: str, config: HealingConfig) -> None:
    """Run all healing services until cancelled, then give back the vote and the locks.

    Raises what ends one of them: a bug, or a replaced metadata store.
    """
    auditor, replicator = Auditor(client, name, config), Replicator(client, name, config)
    checks, first = PeriodicChecks(client, auditor, config), FirstChecks(client, auditor, config)
    tasks = [asyncio.ensure_future(part.run()) for part in (auditor, first, checks, replicator)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await replicator.close()
        await auditor.close()
