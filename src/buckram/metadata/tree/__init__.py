"""The rules of every key store, and what metadata stores are made of: places of keys, ledger records and ids.

`TreeStore` and the reference store in memory are here, too. Not here: real stores, which have rooms of their own.
"""
