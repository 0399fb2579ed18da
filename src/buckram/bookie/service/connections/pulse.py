"""Notices that this process stood still for so long that its bookie's id may have been given to another directory.

A process that was stopped (SIGSTOP, a debugger, a frozen container) goes on with requests that were waiting, before any
timer fires. So connections compare the time with a limit whenever bytes come or go, which a beat moves on while the
process runs.
Not here: what is done about it (`bookie/process.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

BEAT_S = 1.0
LONGEST_S = 6.0
"""A session outlives its last heartbeat by 7 seconds at least, and an id is given to another after its session."""


class Pulse:
    """`limit`: the loop's time after which this process stood still; infinite before it serves, and while in doubt.

    `on_gap` is called when it did, before anything else happens.
    """

    def __init__(self, on_gap: Callable[[], None]) -> None:
        self.limit = float("inf")
        self._on_gap = on_gap

    def missed(self) -> None:
        """Report that the limit has passed."""
        self.limit = float("inf")
        self._on_gap()

    def beat(self) -> None:
        """Begin, or go on."""
        self.limit = asyncio.get_running_loop().time() + LONGEST_S

    async def run(self) -> None:
        """Beat until cancelled."""
        self.beat()
        while True:
            await asyncio.sleep(BEAT_S)
            if self.limit == float("inf"):
                continue  # in doubt: it begins again once that is over
            if asyncio.get_running_loop().time() > self.limit:
                self.missed()
            else:
                self.beat()


STEADY = Pulse(lambda: None)
"""Pulse of connections without a bookie, whose id nobody can take over."""
