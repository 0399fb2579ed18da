"""A bookie serves the metadata store here to clients that do not open it themselves: sessions, requests about keys
and ledgers, and who may change what; no requests about entries.
"""
