"""Writes of Spark to streams, the traces of batches, and the rules by which every sink writes each batch once.

Sinks of databases follow the same rules. Not here: the data source that Spark calls first (`spark/data_source.py`).
"""
