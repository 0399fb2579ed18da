"""The standard benchmark suite: `make bench`, or `python -m bench CASE...`.

cases.py has one function a figure of docs/performance.md, machine.py reads the machine's counters, overload.py is the
misbehaving load. Loads themselves are `buckram bench`, in a process of its own as a user's program would be.
"""
