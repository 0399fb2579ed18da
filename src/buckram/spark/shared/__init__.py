"""The parts that every room of Spark's side uses. Nothing here plans, reads or writes.

They are options, columns, clients in Spark's processes, the cluster's URI with its secrets, and positions of queries.
"""
