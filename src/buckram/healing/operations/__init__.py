"""Operators' actions on bookies: read-only, maintenance, decommission, rebalancing and a collection now.

The checks before them are here, too. Not here: copying single ledgers (`healing/repair`).
"""
