"""Segments of the log: their files, indexes and footers, known bad entries, and the caches of files and footer pages.

Not here: when a file is written or removed (`bookie/storage/upkeep`).
"""
