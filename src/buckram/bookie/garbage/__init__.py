"""Garbage collection decides here which ledgers of a bookie are deleted, within limits, and accounts for the bytes;
how files are compacted is in `bookie/storage/upkeep`.
"""
