"""The standard benchmark suite: `make bench`, or `python -m bench CASE...`.

cases.py has one function for each case, machine.py reads the machine's counters, overload.py is the misbehaving load
(docs/reference/performance.md). The loads are `buckram bench`, in a process of its own as a user's program would be.
"""
