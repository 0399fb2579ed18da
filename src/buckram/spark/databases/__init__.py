"""The format buckram.db: tables, queries and row changes of replicated databases as sources, tables as sinks.

Not here: the rules of exactly-once (`spark/sink/exactly_once.py`).
"""
