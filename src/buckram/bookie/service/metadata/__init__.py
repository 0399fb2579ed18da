"""The metadata store as a bookie serves it to clients that do not open it themselves, and who may change what in it.

Not here: requests about entries (`bookie/service/entries`).
"""
