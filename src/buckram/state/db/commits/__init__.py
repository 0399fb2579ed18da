"""The way of writes through the log: queue, transactions, commits, the replicated state, and what is read from the log.

It imports table_engine; database.py and what stands on it import it.
"""
