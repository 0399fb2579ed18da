"""TLS, logins, certificates and keys of token issuers for any connection.

Not here: who may do what (`core/security`).
"""
