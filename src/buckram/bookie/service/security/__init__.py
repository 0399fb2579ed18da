"""Security of a bookie's clients: logins, rights on entries, owners of ledgers and audit events.

Not here: rights on metadata keys (`bookie/service/metadata`), the rules themselves (`core/security`).
"""
