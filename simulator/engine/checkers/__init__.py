"""The checkers of a life: they observe the wire, the stores, the metadata and the results that clients get.

Invariant ids are those of docs/reference/protocol.md. Production code does not know that it is observed.
"""
