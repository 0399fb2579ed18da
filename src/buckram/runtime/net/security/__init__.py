"""TLS, logins, certificates and keys of token issuers for any connection; who may do what is core/security."""
