"""The elected auditor lives here with its checks of all ledgers, which mark ledgers that lack copies; nothing is
copied here, and nothing here imports `healing/repair`.
"""
