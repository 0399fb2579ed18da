"""Lives of ledgers: their plans, faults, workload, directed scenarios, ending, and planted bugs."""
