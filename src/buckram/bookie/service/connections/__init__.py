"""One connection, its memory budget, the ledger births it has named and the long polls it waits on live here; who
the peer is and what it may do is in `security`.
"""
