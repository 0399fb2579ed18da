"""What every simulated life runs in: virtual time, network, disks, metadata stores, machines, and the protocol's judge.

Not here: what a life does (`simulator/ledgers`, `simulator/streams`).
"""
