"""Replication between clusters: what one cluster has as mirrors in another one, continuously and exactly once.

`run.py` copies a namespace, `stream_copy.py` one stream, `object_copy.py` its objects; `promotion.py` makes a mirror
the side that writes, `reconciling.py` makes a mirror of the side that was superseded. Not here: which side may write
and when a replication is refused (`core/streams/metadata/mirrors.py`, `core/streams/replication_links.py`).
"""
