"""Placement: the choice of the bookies that hold a ledger, by one policy over a topology of named levels.

`topology` holds the places of bookies, `policy` the rules. `choose` finds members for a new ensemble and replacements,
`judge` decides whether an ensemble or a set of copies meets the rules, `explain` gives the reason for each choice.
Everything is a pure function of its arguments and of a generator that is passed in.
"""
