"""This folder has what a client knows of its cluster: its bookies, who they are, how quick they were, their clocks,
and whether the metadata store went back; ledgers and handles are in the rooms beside it.
"""
