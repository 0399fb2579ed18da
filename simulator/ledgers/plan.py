"""The plan of a life of ledgers: its cluster (`simulator/engine/plan.py`) and the faults that are drawn for such lives
only.

Not here: the faults themselves (`simulator/engine/faults`, `simulator/ledgers/faults.py`).
"""

from __future__ import annotations

import simulator.ledgers.faults  # noqa: F401  # registers its faults before any plan is drawn
from simulator.engine.faults.registry import LEDGERS
from simulator.engine.plan import Plan, draw_independent_faults, draw_sites, make_cluster
from simulator.ledgers.tenants import draw_tenants


def make_plan(seed: int) -> Plan:
    """Return the plan of the seed's life of ledgers."""
    plan = make_cluster(seed)
    draw_independent_faults(plan, LEDGERS)
    draw_tenants(plan)
    draw_sites(plan)
    return plan
