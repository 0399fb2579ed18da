"""Replicators, which take marked ledgers and copy their fragments to other bookies.

Not here: marking ledgers (`healing/auditing`).
"""
