"""The format buckram.db lives here: tables, queries and row changes of replicated databases as sources, tables as
sinks; not the rules of exactly-once, which are in spark/sink.
"""
