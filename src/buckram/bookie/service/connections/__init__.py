"""One connection of a client: its session, its memory budget, the births of ledgers it has named, its long polls.

Not here: who the peer is and what it may do (`bookie/service/security`).
"""
