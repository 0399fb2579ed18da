"""A bookie's checks that its directory, id, clock and metadata store are the ones it knew before (cookie, witness,
remembered deletions) live here; what follows from a doubt is decided by registration, admission and garbage collection.
"""
