"""The parts of a planted bug of self-healing; the bugs are in `mutants.py` and `completeness_mutants.py`."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.engine.planting import Patches


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug. `rows` are the invariants that it breaks, `seeds` its budget of lives."""

    name: str
    rows: str
    bug: str
    apply: Patches
    seeds: int = 40
    faults: tuple[str, ...] = ()
    """Faults of the mutant's lives, for bugs that show only under some faults; empty: those of each plan."""
    slow: bool = False
    """True if copying takes long in its lives."""
    racks: bool = False
    """True if its lives have a rule of racks."""
    shared: bool = False
    """True if bookies share hosts in its lives."""
    streams: bool = False
    """True if half of the ledgers of its lives are streams'."""
    mute: bool = False
    """True if clients note nothing in its lives."""
    absence: str = ""
    """Fault of `absences.py` in its lives, which lose no bookie for good; empty: none."""
