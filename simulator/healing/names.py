"""The invariants and situations of self-healing that lives evaluate and reach.

H1 to H10 are the ten invariants of autorecovery: H1 copies before metadata, H2 no fragment that can grow, H3 members
only, H4 nobody twice, H5 only under the lock, H6 marks by version, H7 no error taken for an absence, H8 recovery below
no promise, H9 disabled is disabled, H10 no audit of half a listing. M7 and L12 are those of the protocol, H11 is
the protocol's C4: a closed ledger has all its copies, or it is said that it may not.
"""

INVARIANTS = (
    *(f"H{n}" for n in range(1, 12)),
    *(f"M{n}" for n in range(1, 9)),
    "M10",
    *(f"S{n}" for n in range(1, 14)),
    "F17",
    *(f"L{n}" for n in (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12)),
    "brake",
    "domain",
    "delay",
    "departure",
    "maintenance",
    "reason",
    "content",
)
"""The invariants that lives evaluate."""

SITUATIONS = (
    "a member was replaced",
    "a ledger was recovered by healing",
    "a mark was taken back",
    "a mark was made anew",
    "two candidates at once",
    "a replicator crashed with a lock",
    "a session ended with a lock",
    "the brake was on",
    "disabled with marks",
    "a ledger waits at the end",
    "a lost bookie came back",
    "a member of an open ledger hung",
    "a writer alone did not reach a member",
    "a member hung while its ledger was closed",
    "a bookie was away again before anybody looked",
    "a ledger whose writer died was recovered while a member lacked entries",
    "a client noted a ledger",
    "a note was taken back",
    "a bookie was away and is looked at",
    "an empty disk was refused",
    "an empty bookie joined",
    "bookies were full",
    "a bookie was decommissioned",
    "a bookie was drained",
    "a bookie was replaced",
    "a bookie rested",
    "space was evened out",
    "a whole rack went",
    "all bookies went when others were long gone",
    "an operator let copying proceed",
    "a stream's writer was idle",
    "the delay was changed",
    "a check of copies was asked for",
    "a mark became unreadable",
    "a reader read beside healing",
    "a reader followed a ledger to its end",
    "a marked ledger was recovered by another",
    "a marked ledger was deleted",
    "waits: no-bookie",
    "waits: no-good-copy",
    "waits: copy-away",
    "waits: writer-lives",
    "waits: target-failed",
    "waits: unreadable-record",
    "waits: other",
)
