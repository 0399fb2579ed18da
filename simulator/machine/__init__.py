"""Replicated machines in the simulator: leaders, followers, snapshots, clients with retries, checked against R1 to R12.

    python -m buckram.sim --machine --seeds 0:2000     lives
    python -m buckram.sim --machine --mutants          planted bugs

Hosts, network, disks and metadata stores come from `simulator/engine`, with most faults; `faults` adds those of
machines. `plan` draws a life from its seed; `replicas` and `clients` are the actors on a common `stage`, `state` is the
machine's class; `life` is one life, `ending` its end. `reference` is an independent fold of the log, `rules` and
`heads` check against it, `watching` tells them what replicas apply; `mutants` are planted bugs.
"""
