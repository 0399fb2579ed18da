"""The parts that every room of Spark's side uses live here: options, columns, clients in Spark's processes, the
cluster's URI with its secrets, positions of queries; nothing here plans, reads or writes.
"""
