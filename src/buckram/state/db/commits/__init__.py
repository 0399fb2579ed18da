"""The way of writes through the log: queue, transactions, commits, the replicated state, and what is read from the
log; imports table_engine, and is imported by database.py and what stands on it.
"""
