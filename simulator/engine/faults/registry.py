"""The registry of faults: how often a life gets each one, and which lives each one suits.

Not here: running the faults of a life (`runner.py`), choosing them (`simulator/engine/plan.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from simulator.engine.faults.runner import FaultRunner
    from simulator.engine.plan import Plan

LEDGERS, STREAMS, MACHINES, OBJECTS, GATEWAYS = "ledgers", "streams", "machines", "objects", "gateways"
"""The kinds of lives. Those of machines, objects and gateways get the faults of streams that are in the engine, too."""


class RunFault(Protocol):
    """Carries a fault out: it begins, lasts a while and ends. What must end at once goes to `runner.on_heal`."""

    def __call__(self, runner: FaultRunner, /) -> Awaitable[None]: ...


class FitsPlan(Protocol):
    """Returns whether a life with this plan may get the fault."""

    def __call__(self, plan: Plan, /) -> bool: ...


class SuitPlan(Protocol):
    """Changes a plan that got the fault, so that the fault has an effect in that life."""

    def __call__(self, plan: Plan, /) -> None: ...


def _fits_any(plan: Plan) -> bool:
    return True


def _change_nothing(plan: Plan) -> None:
    """Leave the plan as it is."""


def crashes_only(plan: Plan) -> bool:
    """Return whether bookies only crash: no liar, racks or deferred sync by which one bookie's loss may cost
    entries."""
    return not plan.liar and not plan.racks and not plan.deferred


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. `lives` are the kinds of lives that may get it (LEDGERS, STREAMS, MACHINES)."""

    name: str
    weight: float
    run: RunFault
    fits: FitsPlan = _fits_any
    suit: SuitPlan = _change_nothing
    damages: bool = False
    """One bookie loses acknowledged data. A life gets one such fault at most, and only where Qa is 2 or more."""
    lives: tuple[str, ...] = (LEDGERS, STREAMS)
    independent: bool = False
    """Drawn independently of all others: `weight` is a percentage of the lives that it fits. Otherwise `weight` is
    relative to those of the other common faults."""


_FAULTS: dict[str, Fault] = {}


def _add(fault: Fault, before: str | None = None) -> None:
    if fault.name in _FAULTS:
        raise ValueError(f"there are two faults named {fault.name!r}; give the second another name")
    later = list(_FAULTS)[list(_FAULTS).index(before) :] if before is not None else []
    _FAULTS[fault.name] = fault
    for name in later:
        _FAULTS[name] = _FAULTS.pop(name)


def register_independent(
    name: str,
    percent: float,
    run: RunFault,
    *,
    fits: FitsPlan = _fits_any,
    suit: SuitPlan = _change_nothing,
    damages: bool = False,
    lives: Iterable[str] = (LEDGERS, STREAMS),
    before: str | None = None,
) -> None:
    """Add a fault that is drawn independently, so that adding it changes no life that does not get it.

    `percent` of the lives that it fits get it. `before` names the fault that is drawn next after it; the order matters
    where `fits` looks at the faults chosen so far.
    """
    _add(Fault(name, percent, run, fits, suit, damages, tuple(lives), independent=True), before)


def register_common(
    name: str,
    weight: float,
    run: RunFault,
    *,
    suit: SuitPlan = _change_nothing,
    damages: bool = False,
    lives: Iterable[str] = (LEDGERS, STREAMS),
) -> None:
    """Add a fault to the common ones, of which each life gets one to four.

    `weight` is relative to the weights of the other common faults.
    """
    _add(Fault(name, weight, run, suit=suit, damages=damages, lives=tuple(lives)))


def register_own(kind: str, runs: Mapping[str, tuple[float, RunFault]]) -> dict[str, float]:
    """Add the faults that only one kind of lives has, each with its weight among them; return the weights."""
    for name, (weight, run) in runs.items():
        register_common(name, weight, run, lives=(kind,))
    return {name: weight for name, (weight, _) in runs.items()}


def all_faults() -> dict[str, Fault]:
    """Return all registered faults by name, in the order in which they are drawn."""
    return _FAULTS


def faults_for(lives: str, *, independent: bool) -> list[Fault]:
    """Return the faults of one kind of lives (LEDGERS or STREAMS), either the independent or the common ones."""
    return [fault for fault in _FAULTS.values() if lives in fault.lives and fault.independent is independent]


def fault_names(*kinds: str) -> list[str]:
    """Return the names of all faults of these kinds of lives, one kind after the other."""
    return list(dict.fromkeys(fault.name for kind in kinds for fault in _FAULTS.values() if kind in fault.lives))
