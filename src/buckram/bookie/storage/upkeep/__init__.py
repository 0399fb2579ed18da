"""Background work on an open store: next log files, sealing, checkpoints, compaction and verification.

Not here: which ledgers a bookie deletes (`bookie/garbage`).
"""
