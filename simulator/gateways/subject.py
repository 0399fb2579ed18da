"""Gateways as a subject of the simulator: `python -m buckram.sim --gateways`."""

from __future__ import annotations

from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo
from simulator.gateways.faults import all_fault_names
from simulator.gateways.life import Life
from simulator.gateways.mutants import MUTANTS
from simulator.gateways.names import INVARIANTS, SITUATIONS
from simulator.gateways.plan import GatewaysPlan, make_gateways_plan


class Gateways(PlannedSubject[GatewaysPlan]):
    """Lives of gateways."""

    option, invariants, situations, mutants = "--gateways", INVARIANTS, SITUATIONS, MUTANTS
    catching = ("uncaught",)

    def plan(self, seed: int) -> GatewaysPlan:
        return make_gateways_plan(seed)

    def life(self, plan: GatewaysPlan, echo: Echo | None) -> Life:
        return Life(plan, echo)

    def fault_names(self) -> list[str]:
        return all_fault_names()


run_gateways_life = Gateways().run
