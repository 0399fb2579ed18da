"""The invariants and situations of replicated databases that lives evaluate and reach.

D1 to D7 are the rules of docs/explanation/databases-design.md, R7 and R8 those of machines. D4 and D8 have no check of
their own: the histories show the effects of transactions that failed, or that another process's leadership ended.
"""

from __future__ import annotations

INVARIANTS: dict[str, str] = {
    "D1": "no file of a replica has a transaction before its group is in the log",
    "D2": "replicas agree on which groups are void",
    "D3": "after each group, every replica has byte for byte the pages of an independent fold of the log",
    "D5": "what a caller is told to be committed is in the log; what is told to be aborted never is",
    "D6": "under a token something is committed at most once, and whoever repeats it is told the counts of the first",
    "D7": "reads and transactions, stale reads as well, are explained by one order, which respects time",
    "R6": "single statements on registers are linearizable",
    "R7": "a snapshot in the head is a sealed ledger with the end that its row says; its offset only increases",
    "R8": "earliest never passes the oldest snapshot, and moves only when as many are there as are kept",
    "kept": "no ledger of a published snapshot is deleted by a replica",
    "fresh": "a stale read lacks nothing that was acknowledged before the moment, or below the offset, that it names",
    "begun": "a replica that was just opened answers from nothing that is older than the end of the log that it found",
    "fork": "a fork has the pages of the state that it was made of",
    "log": "all that is kept can be read and verified; each replica answers from the newest state",
    "ends": "without faults somebody leads, every call ends, and every follower catches up",
}

SITUATIONS = (
    "a transaction was repeated",
    "a repetition was answered from its receipt",
    "a used token was repeated",
    "a transaction was committed under a used token",
    "an outcome was asked for meanwhile",
    "a call that changed nothing left a receipt",
    "everybody was asked for a read",
    "a database shrank",
    "two replicas believed to lead",
    "a transaction failed alone",
    "a commit was unknown",
    "an unknown commit was committed",
    "an outcome was asked for",
    "a group was cut into parts",
    "a transaction spilled",
    "a spill was rolled back",
    "several calls shared a group",
    "a log was begun anew",
    "a leader was fenced",
    "a leader crashed",
    "a lease ended under a replica",
    "a snapshot was published",
    "a snapshot was restored",
    "a stale read was served",
    "a replica was asked for whatever it has",
    "a replica was read at once",
    "a database was forked",
)
