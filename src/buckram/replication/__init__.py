"""Replication between clusters: streams of one cluster as mirrors in another one, continuously and exactly once.

`run.py` copies a namespace, `stream_copy.py` one stream; `promotion.py` makes a mirror the side that writes,
`reconciling.py` makes a mirror of the side that was superseded. Not here: which side may write and when a replication
is refused (`core/streams/mirrors.py`, `core/streams/links.py`).
"""
