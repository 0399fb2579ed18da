"""Which bookies hold a ledger: one policy over a topology of named levels.

`topology` says where bookies are, `policy` what is asked for, `choose` finds members for a new ensemble and
replacements, `judge` says whether an ensemble or a set of copies is good enough, `explain` why a bookie was taken.
Everything is a pure function of its arguments and of a generator that is passed in.
"""
