"""The embedded key store in one SQLite file: tree, sessions as file locks, commits and waiting for the write lock;
what keys mean is metadata/tree.
"""
