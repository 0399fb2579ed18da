"""Metadata of a stream are its head, the only legal changes of it, and the rules by which a change is refused;
reading and writing them is in streams/shared.
"""
