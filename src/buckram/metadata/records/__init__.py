"""Records that live beside the ledgers on any store, one file for each kind.

They are the health of bookies, under-replication, elections, operators' requests, topology, tenants and security. Not
here: checks over all of them (`metadata/maintain`).
"""
