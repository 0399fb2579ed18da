"""`buckram db`: databases, changes of their rows, the SQL shell and the libSQL server.

It imports cli/shared and cli/namespace.py.
"""
