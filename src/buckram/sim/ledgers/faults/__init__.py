"""The faults of a life, each a short story: begin, last a while, end. Which ones a life gets is its plan's choice.

Faults stay within the guarantee (sim/ledgers/plan): unavailability of anything for any time is fair, damage of data is
limited to one bookie, and only where acknowledged entries have another copy. A story is a coroutine function that gets
the `Faults` of its life; the file in this package that it stands in registers it, and nothing else has to know of it.
"""

from __future__ import annotations

import importlib
import pkgutil

from buckram.sim.ledgers.faults.registry import Story, common, of_lives, register, stories
from buckram.sim.ledgers.faults.runner import Faults

for _module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["Faults", "Story", "common", "of_lives", "register", "stories"]
