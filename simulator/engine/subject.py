"""The interface of a subject, which is what lives simulate and check: ledgers or streams.

Not here: the subjects themselves (`simulator/ledgers/subject.py`, `simulator/streams/subject.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from simulator.engine.lives import LifeResult
from simulator.engine.trace import Echo

if TYPE_CHECKING:
    from simulator.engine.swarm import Totals


class Subject(Protocol):
    """A subject. It has no state, because other processes import it by name."""

    @property
    def option(self) -> str:
        """Return the option of `python -m buckram.sim` that chooses this subject; empty for the default one."""
        ...

    def totals(self) -> Totals:
        """Return empty totals, with the invariants and situations of this subject."""
        ...

    def fault_names(self) -> list[str]:
        """Return the faults that a life may have."""
        ...

    def planned_faults(self, seed: int) -> list[str]:
        """Return the faults of the seed's plan."""
        ...

    def live(self, seed: int, *, faults: list[str] | None = None, echo: Echo | None = None) -> LifeResult:
        """Run one life; `faults` replace those of its plan, `echo` gets each line of its trace."""
        ...

    def hunt(self, budget: int | None, jobs: int, only: str | None) -> int:
        """Plant each known bug and run lives until an invariant catches it. Return the exit code."""
        ...
