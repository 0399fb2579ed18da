"""The embedded key store in one SQLite file: tree, sessions as file locks, commits and waiting for the write lock.

Not here: what keys mean (`metadata/tree`).
"""
