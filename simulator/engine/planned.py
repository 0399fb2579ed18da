"""Subjects whose lives follow a plan that is drawn from the seed, with invariants and situations of their own.

Not here: what the engine needs of any subject (`subject.py`), and the subjects.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from simulator.engine.lives import LifeResult
from simulator.engine.plan import Plan
from simulator.engine.swarm import Totals
from simulator.engine.trace import Echo


class LifePlan(Protocol):
    """A plan of lives in a cluster."""

    @property
    def cluster(self) -> Plan: ...


P = TypeVar("P", bound=LifePlan)


class OwnTotals(Totals):
    """Counts of one subject's invariants and situations; violations of anything."""

    def add(self, result: LifeResult) -> None:
        result.evaluated = {name: count for name, count in result.evaluated.items() if name in self.evaluated}
        result.reached = {name: count for name, count in result.reached.items() if name in self.reached}
        Totals.add(self, result)


class PlannedSubject(ABC, Generic[P]):
    """An engine.subject.Subject."""

    option: str
    invariants: Iterable[str]
    situations: Iterable[str]

    @abstractmethod
    def plan(self, seed: int) -> P:
        """Return the plan of the seed's life."""

    @abstractmethod
    def run(self, seed: int, plan: P, echo: Echo | None) -> LifeResult:
        """Run a life of this plan."""

    @abstractmethod
    def fault_names(self) -> list[str]: ...

    @abstractmethod
    def hunt(self, budget: int | None, jobs: int, only: str | None) -> int: ...

    def totals(self) -> Totals:
        return OwnTotals(evaluated=dict.fromkeys(self.invariants, 0), reached=dict.fromkeys(self.situations, 0))

    def planned_faults(self, seed: int) -> list[str]:
        return self.plan(seed).cluster.faults

    def live(self, seed: int, *, faults: list[str] | None = None, echo: Echo | None = None) -> LifeResult:
        plan: Any = self.plan(seed)
        if faults is not None:
            plan.cluster.faults = faults
        result = self.run(seed, plan, echo)
        gc.collect()  # These lives are large.
        return result


__all__ = ["LifePlan", "OwnTotals", "PlannedSubject"]
