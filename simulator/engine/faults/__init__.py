"""The faults of lives, each a coroutine function: it begins, lasts a while and ends. A life's plan chooses its faults.

Faults stay within the guarantee (simulator/engine/plan.py): anything may be unavailable for any time, but only one
bookie may lose data, and only where acknowledged entries have another copy. A fault gets the `FaultRunner` of its life.
The module that defines it registers it, and nothing else names it. Each module of this package is imported here.

Not here: faults that need clients of one kind of lives (`simulator/ledgers/faults.py`, `simulator/streams/faults.py`).
"""

from __future__ import annotations

import importlib
import pkgutil

from simulator.engine.faults.registry import Fault, all_faults, faults_for, register_common, register_independent
from simulator.engine.faults.runner import FaultRunner

for _module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["Fault", "FaultRunner", "all_faults", "faults_for", "register_common", "register_independent"]
