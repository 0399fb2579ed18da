"""The observers of a life: they see the wire, the stores, the metadata and what clients got, and judge all the time.

Invariant ids are those of docs/reference/protocol.md. Nothing in production code knows that it is watched.
"""
