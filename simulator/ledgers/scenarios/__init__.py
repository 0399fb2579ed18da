"""Directed schedules: rare interleavings, scripted step by step. The invariants are checked as in any life.

D1 to D10 are those of docs/reference/protocol.md 6.9; the others were added for defects that random lives rarely reach.
"""

from simulator.ledgers.scenarios.run import SCENARIOS, run_scenario

__all__ = ["SCENARIOS", "run_scenario"]
