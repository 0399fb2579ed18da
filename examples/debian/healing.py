"""What the cluster does about the bookie that was killed: it stays dead, an empty one takes its place.

Not here: reading every copy at the end, which Spark does in the driver's process (`report.py`).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from buckram.healing.operations.dependency_check import ledgers_naming
from buckram.healing.overview import overview
from buckram.metadata.uri import open_store
from buckram.types import BookieId

DELAY_S, RETRY_S = 5, 1
"""A lost bookie is waited for so long, and a ledger that cannot be copied yet is tried again; a job of a minute cannot
wait for the five minutes and the thirty seconds that machines are given."""


class Autorecovery:
    """`buckram autorecovery run` as a process of its own; ends when it is killed or stopped."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.log = folder / "autorecovery.log"
        command = [sys.executable, "-m", "buckram", "autorecovery", "run", "--metadata", uri]
        settings = {"BUCKRAM_HEALING_LOST_BOOKIE_DELAY_S": str(DELAY_S), "BUCKRAM_HEALING_RETRY_S": str(RETRY_S)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, **settings}, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Votes and locks are given back."""
        self._process.terminate()
        self._process.wait()


async def healed(uri: str, dead: BookieId, patience_s: float) -> str:
    """Wait until no ledger names the dead bookie and no ledger lacks copies; else say after a while what is missing."""
    store = await open_store(uri)
    limit = time.monotonic() + patience_s
    try:
        while True:
            naming, queue = await ledgers_naming(store, dead), (await overview(store)).queue
            if not naming and not queue:
                return ""
            if time.monotonic() > limit:
                reasons = "; ".join(f"ledger {one.ledger} {one.state}: {one.why}" for one in queue)
                return f"ledgers {list(naming)} still name {dead}; {reasons or 'nothing is queued'}"
            await asyncio.sleep(0.1)
    finally:
        await store.close()
