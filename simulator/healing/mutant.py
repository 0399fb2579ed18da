"""What a planted bug of self-healing consists of; the bugs are in `mutants.py` and `completeness_mutants.py`."""

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
    """Those of its lives, where the bug shows under few; else each life has its own."""
    slow: bool = False
    """Copying takes long in its lives."""
    racks: bool = False
    """Its lives have a rule of places."""
    shared: bool = False
    """In its lives bookies share hosts."""
    streams: bool = False
    """Half of the ledgers of its lives are streams'."""
    mute: bool = False
    """Clients note nothing in its lives."""
    absence: str = ""
    """In its lives members miss parts of ledgers so, and no bookie is lost for good."""
