"""Replicated state machines: a class with apply(command) whose state is the same in every process that opens it.

`ns.machine("inventory", Inventory)` gives a `Machine` (`state/machine/machine.py`); `Replica`
(`state/machine/replica.py`) is the part below it, for other engines. docs/explanation/machines-design.md says how it
works.
"""
