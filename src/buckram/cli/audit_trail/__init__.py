"""The audit trail: events that bookies noted become records of the stream `system/audit`, and are read there."""
