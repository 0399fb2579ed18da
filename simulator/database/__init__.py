"""Lives of replicated SQL databases: the real engine on simulated machines, networks and threads.

Invariants and situations: `names.py`. A life: `life.py`. Planted bugs: `mutants.py`. Built on lives of machines
(`simulator/machine`), whose faults and restless replicas it has.
"""
