"""The production Runtime: real network and clock. The simulator builds its own."""

from __future__ import annotations

import os
import random

from buckram.runtime.net.tcp import TcpNetwork
from buckram.runtime.process.clock import process_clock
from buckram.runtime.process.process_setup import keep_freed_memory
from buckram.runtime.process.stats import NullStats
from buckram.seams import Runtime, Stats


def production_runtime(seed: int | None = None, stats: Stats | None = None) -> Runtime:
    """`seed` None: randomness from the operating system. `stats` None: none are kept."""
    keep_freed_memory()
    return Runtime(
        TcpNetwork(), process_clock(os.environ), random.Random(seed), stats if stats is not None else NullStats()
    )
