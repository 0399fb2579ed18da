"""Self-healing as a subject of the simulator: auditors and replicators beside writers, while bookies are lost."""
