"""`buckram stream`: reading, writing, cursors, the janitor, and copies of records in and out.

It imports cli/shared and cli/namespace.py.
"""
