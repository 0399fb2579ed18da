"""`buckram ledger`: commands that create, read, write, check and repair ledgers.

It imports cli/shared and `rate_of` of cli/bookie.
"""
