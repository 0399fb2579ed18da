"""`buckram db`: databases, their changes, the SQL shell and the libSQL server; imports cli/shared and
cli/namespace.py.
"""
