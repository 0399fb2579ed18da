"""Log segments, their indexes and footers, known bad entries and the caches of files and footer pages live here; no
decisions about when a file is written or removed.
"""
