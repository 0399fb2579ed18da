"""The invariants and situations of replicated machines that lives evaluate and reach.

R1 to R12 are the rules of docs/explanation/machines-design.md. R5 and R12 have no check of their own here: the code
checks R5 when a leader begins, and what breaks R12 makes replicas differ (R1).
"""

from __future__ import annotations

INVARIANTS: dict[str, str] = {
    "R1": "each replica has, at each offset, the state that an independent fold of the same log has",
    "R2": "a leader applies only what its stream has acknowledged",
    "R3": "a command is applied at most once, however often and on whatever replica it was repeated",
    "R4": "whoever repeats a command is told the result of the first time; what is acknowledged is in the log",
    "R6": "reads and commands are linearizable: registers, and lists that only grow",
    "R7": "a snapshot in the head is a sealed ledger with the end that its row says; its offset only increases",
    "R8": "earliest never passes the oldest snapshot, and moves only when as many are there as are kept",
    "R9": "a damaged snapshot is not restored; the one before it is",
    "R10": "a replica that does not know a command stops before it, and never skips one",
    "R11": "a replica that miscounts stops at the next digest",
    "fresh": "a read of at most so many seconds lacks nothing that was acknowledged before them; `after` is kept",
    "kept": "no ledger of a published snapshot is deleted by a replica",
    "log": "the log that is left at the end has the records that replicas applied",
    "ends": "without faults somebody leads, every call ends, and every follower catches up",
}

SITUATIONS = (
    "a command was repeated",
    "a command was refused",
    "a leader was fenced",
    "a leader stepped down",
    "a leader crashed",
    "a lease ended under a replica",
    "a snapshot was published",
    "a snapshot was restored",
    "a snapshot was damaged",
    "a damaged snapshot was passed over",
    "a follower fell behind the log",
    "a digest was compared",
    "a replica stopped at a command that it does not know",
    "a replica that miscounts stopped",
    "a read waited for its proof alone",
    "a stale read was served",
    "a read was too stale",
    "a command was given up",
)
