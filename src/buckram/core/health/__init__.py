"""Health of a cluster: a table of states, and pure functions from facts to findings, used by all interfaces.

`states.py` has the kinds, `table.py` all states, `facts.py` the facts that are gathered, `findings.py` the list that
every interface shows. Each part of the facts is judged in a module of its own: `of_bookies.py`, `of_collection.py`,
`of_metadata.py`, `of_healing.py`, `of_streams.py`. Not here: gathering (`buckram/health`).
"""
