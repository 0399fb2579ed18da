"""The plan of a life of ledgers: its cluster (`sim/engine/plan.py`) and the faults that are drawn for such lives only.

Not here: the faults themselves (`sim/engine/faults`, `sim/ledgers/faults.py`).
"""

from __future__ import annotations

import buckram.sim.ledgers.faults  # noqa: F401  # registers its faults before any plan is drawn
from buckram.sim.engine.faults.registry import LEDGERS
from buckram.sim.engine.plan import Plan, draw_independent_faults, draw_sites, make_cluster
from buckram.sim.ledgers.tenants import draw_tenants


def make_plan(seed: int) -> Plan:
    """Return the plan of the seed's life of ledgers."""
    plan = make_cluster(seed)
    draw_independent_faults(plan, LEDGERS)
    draw_tenants(plan)
    draw_sites(plan)
    return plan
