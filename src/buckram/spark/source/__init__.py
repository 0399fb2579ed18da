"""Reads from Spark live here: planning partitions, batch and micro-batch readers of streams and ledgers, scans in
executors, tables of the cluster, cursors and lag of queries; not databases.
"""
