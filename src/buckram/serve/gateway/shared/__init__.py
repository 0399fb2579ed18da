"""What all groups of a gateway's operations use lives here: the table of operations, JSON Schema, authentication,
errors as answers, idempotency, memory budget, jobs, limits; no data of streams or objects.
"""
