"""The accounts of namespaces on a bookie: usage, creation quotas and events of the audit trail.

Not here: holding requests back (`bookie/service`).
"""
