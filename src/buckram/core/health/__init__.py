"""Health of a cluster: a table of states, and pure functions from facts to findings, used by all interfaces.

`states.py` has the kinds, `state_table.py` all states, `facts.py` the facts that are gathered, `findings.py` the list
that every interface shows. The facts are judged in `bookie_states.py` and `cluster_states.py`.
Not here: gathering (`buckram/health`).
"""
