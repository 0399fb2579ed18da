"""Operators' actions on bookies live here: read-only, maintenance, decommission, rebalancing, a collection now, and
the checks before them; single ledgers are copied in `healing/repair`.
"""
