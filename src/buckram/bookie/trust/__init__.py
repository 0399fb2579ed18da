"""Checks that a bookie's directory, id, clock and metadata store are the ones it knew before.

The cookie, the witness and the remembered deletions are kept here. Not here: what follows from a doubt, which
registration, admission and garbage collection decide.
"""
