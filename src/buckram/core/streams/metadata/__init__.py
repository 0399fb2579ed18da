"""Metadata of a stream: its head, the only legal changes of it, and the rules by which a change is refused.

Not here: reading and writing them (`streams/shared`).
"""
