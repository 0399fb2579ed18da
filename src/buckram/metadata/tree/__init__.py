"""The key store contract's rules and what every metadata store is made of: places of keys, ledger records and ids,
TreeStore, and the reference store in memory; no real store lives here.
"""
