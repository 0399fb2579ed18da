"""The environment of every life: virtual time, network, disks, metadata stores, machines, and the protocol's judge.

Not here: the actions of a life (`simulator/ledgers`, `simulator/streams`).
"""
