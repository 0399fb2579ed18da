"""Logins, rights on entries, owners of ledgers and audit events of clients live here; rights on metadata keys are in
`bookie/service/metadata`, the rules themselves in `core/security`.
"""
