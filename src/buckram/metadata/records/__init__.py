"""Records that live beside the ledgers on any store, one file for each kind: health of bookies, under-replication,
elections, operators' requests, topology, tenants, security; checks over all of them are metadata/maintain.
"""
