"""A client's knowledge of its cluster: its bookies and how quick they were, clocks, and the store's history.

Not here: ledgers and their handles, which are in the rooms beside this one.
"""
