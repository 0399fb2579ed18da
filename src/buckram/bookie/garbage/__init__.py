"""Garbage collection: it decides which ledgers of a bookie are deleted, within limits, and accounts for their bytes.

Not here: how files are compacted (`bookie/storage/upkeep`).
"""
