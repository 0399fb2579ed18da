"""Reads from Spark: planning, readers of batches and micro-batches, scans in executors, tables of the cluster.

The cursors and the lag of queries are here, too. Not here: databases (`spark/databases/`).
"""
