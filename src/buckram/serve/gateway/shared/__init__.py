"""The parts that all groups of a gateway's operations share, without data of streams or objects.

They are the table of operations, JSON Schema, authentication, errors as answers, idempotency, the memory budget, jobs
and limits.
"""
