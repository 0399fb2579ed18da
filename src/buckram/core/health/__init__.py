"""The one truth about health: a table of states, and pure functions from facts to findings.

`states.py` has the kinds, `table.py` all states, `facts.py` what is gathered, `findings.py` the list that every door
shows. What judges a part of the facts has a module of its own: `of_bookies.py`, `of_metadata.py`, `of_healing.py`,
`of_streams.py`. Not here: gathering (`buckram/health`).
"""
