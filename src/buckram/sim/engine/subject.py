"""What the engine needs of a subject: of what is simulated and judged, such as ledgers or streams.

Not here: the subjects themselves (`sim/ledgers/subject.py`, `sim/streams/subject.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from buckram.sim.engine.lives import LifeResult

if TYPE_CHECKING:
    from buckram.sim.engine.swarm import Totals


class Subject(Protocol):
    """One value per subject. Other processes import it by name, so it has no state of its own."""

    @property
    def option(self) -> str:
        """The option of `python -m buckram.sim` that chooses this subject; empty for the default one."""
        ...

    def totals(self) -> Totals:
        """Empty sums with the names of the invariants and situations that count for this subject."""
        ...

    def fault_names(self) -> list[str]:
        """The faults that a life may have."""
        ...

    def planned_faults(self, seed: int) -> list[str]:
        """The faults that the seed's plan chooses."""
        ...

    def live(
        self, seed: int, *, faults: list[str] | None = None, echo: Callable[[str], None] | None = None
    ) -> LifeResult:
        """Run one life; `faults` replace those of its plan, `echo` gets each line of its trace."""
        ...

    def hunt(self, budget: int | None, jobs: int, only: str | None) -> int:
        """Plant each known bug until an invariant catches it; the exit code."""
        ...
