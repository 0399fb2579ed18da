"""Replicated state machines: a class with apply(command) whose state is the same in every process that opens it.

`ns.machine("inventory", Inventory)` gives a `Machine` (`machine/machine.py`); `Replica` (`machine/replica.py`) is the
part below it, for other engines. docs/explanation/machines-design.md says how it works.
"""
