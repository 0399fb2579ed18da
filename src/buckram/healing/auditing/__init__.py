"""The elected auditor with its checks of all ledgers, which mark ledgers that lack copies.

Nothing is copied here, and nothing here imports `healing/repair`.
"""
