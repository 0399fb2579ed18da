"""The result of one life, and the guard that records every broken invariant during it.

Not here: sums over many lives (`sim/engine/swarm.py`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from buckram.errors import InvariantViolation
from buckram.sim.engine.checkers.report import Violation
from buckram.sim.engine.world import World


@dataclass(slots=True)
class LifeResult:
    """The result of one life. `virtual_s` is its length in virtual seconds, `replay` a command that repeats it."""

    seed: int
    plan: str
    violations: list[Violation]
    evaluated: dict[str, int]
    reached: dict[str, int]
    acked: int
    crashes: int
    faults: int
    steps: int
    virtual_s: float
    trace_hash: str
    lines: list[str] = field(default_factory=list)
    replay: str = ""


class report_broken_invariants(AbstractContextManager[None]):  # a class that is used like a function
    """Report each InvariantViolation when it is created, even if it is caught later."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._original = InvariantViolation.__init__

    def __enter__(self) -> None:
        world, original = self._world, self._original

        def report(error: InvariantViolation, *args: object) -> None:
            original(error, *args)
            world.report.violate(str(args[0]).split(":")[0] if args else "invariant", f"checked in the code: {args}")

        InvariantViolation.__init__ = report  # type: ignore[method-assign,assignment]  # for the time of a life

    def __exit__(self, *exc: object) -> None:
        InvariantViolation.__init__ = self._original  # type: ignore[method-assign]  # as it was
