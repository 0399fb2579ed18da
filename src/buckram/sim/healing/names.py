"""The invariants and situations of self-healing that lives evaluate and reach.

H1 to H10 are the ten invariants of autorecovery: H1 copies before metadata, H2 no fragment that can grow, H3 members
only, H4 nobody twice, H5 only under the lock, H6 marks by version, H7 no error taken for an absence, H8 recovery below
no promise, H9 disabled is disabled, H10 no audit of half a listing. M7 and L12 are those of the protocol.
"""

INVARIANTS = ("H1", "H2", "H3", "H4", "H5", "H6", "H7", "H9", "M7", "L12", "brake", "reason", "content")
"""Those that are evaluated now. H8 and H10 have no checker of their own yet: `content` notices their effects."""

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
)
