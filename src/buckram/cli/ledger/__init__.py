"""`buckram ledger`: creating, reading, writing, checking and repairing ledgers; imports cli/shared and `rate_of` of
cli/bookie.
"""
