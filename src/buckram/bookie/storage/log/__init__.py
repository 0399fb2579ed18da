"""The end of the log: group commit, its blocks, and the record of where the log is durable.

Not here: sealed files (`bookie/storage/segments`).
"""
