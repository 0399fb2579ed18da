"""Replication between clusters in the simulator: two clusters in one world, and the tool that copies between them.

    python -m buckram.sim --replication --seeds 0:1000     lives
    python -m buckram.sim --replication --mutants          planted bugs

Each cluster has a metadata store, bookies, clocks and faults of its own (`stage.Place`); time, network and trace
are common. `plan` draws a life from its seed. `writers` append on the side that they take for the one that writes,
`copiers` run `replicate run`, `operators` promote, reconcile, restore backups, truncate, and delete and create streams
anew; each of them may be killed at any change. `truth` has what was attempted and acknowledged, in which stream of
which cluster, and knows nothing of replication; `heads` follows the two stores, `rules` compare what the tool says and
what is there with both. `ending` is a life's end, `mutants` are planted bugs.
"""
